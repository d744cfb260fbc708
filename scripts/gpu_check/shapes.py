"""What is measured: the sizes of models and matrices, as words for `fp8train bench`."""

from __future__ import annotations

from dataclasses import dataclass, field

LEAST_SECONDS = 0.001  # that the program takes


@dataclass(frozen=True)
class Shapes:
    model: list[str]  # preset and vocabulary
    layers: int
    length: int  # tokens of the one sequence
    heads: list[str]
    probe: list[str]  # every way to multiply, however small
    cast: list[str] = field(default_factory=list)
    faster: float = 1.0  # times are divided by this
    patience: float = 1.0  # limits of items are multiplied by this

    def seconds(self, seconds: float) -> list[str]:
        return ["--seconds", f"{max(seconds / self.faster, LEAST_SECONDS):g}"]

    def step(self, plan: str, seconds: float, layers: int = 0) -> list[str]:
        return [
            "step", *self.model, "--layers", str(layers or self.layers), "--micro-batch-size", "1",
            "--seq-length", str(self.length), "--quick-weights", "--plan", plan,
            *self.seconds(seconds),
        ]

    def probes(self) -> list[str]:
        return ["products", *self.probe, *self.seconds(0.03)]

    def products(self, *words: str) -> list[str]:
        return ["products", *self.model, "--tokens", str(self.length), *words, *self.seconds(3)]

    def attention(self) -> list[str]:
        return [
            "attention", "--batch", "1", "--seq-length", str(self.length), *self.heads,
            *self.seconds(2),
        ]

    def casts(self) -> list[str]:
        return ["cast", *self.cast, *self.seconds(2)]


# Llama-3-8B's width with half of its layers, which trains with fp32 states on one GPU of 141 GB.
LARGE = Shapes(
    ["--preset", "llama-8b", "--vocabulary", "128256"],
    16,
    8192,
    ["--heads", "32", "--kv-heads", "8", "--head-dim", "128"],
    ["--preset", "llama-42m", "--vocabulary", "4096", "--tokens", "256"],
)
# To try the check itself.
SMALL = Shapes(
    ["--preset", "toy", "--vocabulary", "256"],
    2,
    64,
    ["--heads", "4", "--kv-heads", "2", "--head-dim", "16"],
    ["--preset", "toy", "--vocabulary", "256", "--tokens", "64"],
    ["--rows", "64", "--columns", "256"],
    300.0,
    10.0,
)
