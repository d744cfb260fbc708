"""What is measured: the sizes of models and matrices, as words for `fp8train bench`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

LEAST_SECONDS = 0.001  # that the program takes
# GiB of a GPU and the layers of Llama-3-8B's width that it trains with fp32 states on one sequence
# of 8192 tokens: `fp8train estimate` plans 93, 56, 37 and 27 GiB in bf16, and PyTorch, which holds
# all logits, needs more.
LAYERS_BY_MEMORY = [(130.0, 16), (70.0, 8), (42.0, 4), (31.0, 2)]


def layers_that_fit(memory_gib: float) -> int:
    """0 where not even the smallest of these models fits."""
    return next((layers for least, layers in LAYERS_BY_MEMORY if memory_gib >= least), 0)


@dataclass(frozen=True)
class Shapes:
    model: list[str]  # preset and vocabulary
    layers: int
    length: int  # tokens of the one sequence
    heads: list[str]
    probe: list[str]  # every way to multiply, however small
    cast: list[str] = field(default_factory=list)
    faster: float = 1.0  # times are divided by this
    slack: float = 1.0  # limits of items are multiplied by this
    by_memory: bool = False  # `layers` follows from the GPU's memory

    def fitted(self, memory_gib: float) -> "Shapes":
        """For a GPU of this memory."""
        return replace(self, layers=layers_that_fit(memory_gib)) if self.by_memory else self

    def seconds(self, seconds: float) -> list[str]:
        return ["--seconds", f"{max(seconds / self.faster, LEAST_SECONDS):g}"]

    def step(self, plans: str, seconds: float, layers: int = 0) -> list[str]:
        return [
            "step", *self.model, "--layers", str(layers or self.layers), "--micro-batch-size", "1",
            "--seq-length", str(self.length), "--quick-weights", "--plan", plans,
            *self.seconds(seconds),
        ]

    def probes(self) -> list[str]:
        return ["products", *self.probe, *self.seconds(0.03)]

    def products(self, *words: str) -> list[str]:
        return ["products", *self.model, "--tokens", str(self.length), *words, *self.seconds(3)]

    def verified_products(self) -> list[str]:
        return ["products", *self.model, "--tokens", str(self.length), "--verify"]

    def attention(self) -> list[str]:
        return [
            "attention", "--batch", "1", "--seq-length", str(self.length), *self.heads,
            *self.seconds(2),
        ]

    def casts(self) -> list[str]:
        return ["cast", *self.cast, *self.seconds(2)]


# Llama-3-8B's width, and as many of its layers as fit.
LARGE = Shapes(
    ["--preset", "llama-8b", "--vocabulary", "128256"],
    8,
    8192,
    ["--heads", "32", "--kv-heads", "8", "--head-dim", "128"],
    ["--preset", "llama-42m", "--vocabulary", "4096", "--tokens", "256"],
    by_memory=True,
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
