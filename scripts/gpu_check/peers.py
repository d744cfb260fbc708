"""Items that measure PyTorch and fp8train alternately on the same model, PyTorch in a process for
each variant."""

from __future__ import annotations

import re
from typing import Callable

from .item import (
    PYTHON_PACKAGES, ROOT, Item, Outcome, Part, Workspace, failed_command, parse_json, too_small,
    unknown,
)
from .speed import STEP_LIMIT, STEP_USUAL, TUNING_SECONDS

SCRIPT = ROOT / "scripts/bench/peers.py"
SECONDS = 6.0
# PyTorch, fp8train, PyTorch, ...
PAIRS = [
    ("bf16-compile", ["bf16"]),
    ("torchao-fp8-compile", ["te-current", "te-delayed"]),
    ("torchao-rowwise-compile", ["torchao-rowwise"]),
]
ROUNDS = 2
SHARDED = [f"{variant}-fsdp" for variant, _ in PAIRS]
# Imports 8 s, compiling 25 to 40 s, the measurement.
TORCH_USUAL, TORCH_LIMIT = 60, 150


def own_command(work: Workspace, plans: list[str]) -> list[str]:
    return [*work.shapes.step(",".join(plans), SECONDS), "--tune"]


def own(number: int, pair: int, plan: str) -> Item:
    usual = STEP_USUAL + SECONDS / 2 + TUNING_SECONDS / 2  # tuned once, for all rounds
    part = Part(f"peers.{number}.{pair}", plan, own_command)
    return Item(f"peers.{number}.own.{plan}", 3, usual, STEP_LIMIT + 20, part=part)


def torch(number: int, variant: str) -> Item:
    return Item(
        f"peers.{number}.torch.{variant}", 3, TORCH_USUAL, TORCH_LIMIT, torch_check(variant)
    )


def torch_check(variant: str) -> Callable[[Workspace], Outcome]:
    def check(work: Workspace) -> Outcome:
        small = too_small(work)
        if small is not None:
            return small
        known = work.environment.get("PYTHONPATH", "")
        packages = [str(PYTHON_PACKAGES)] if PYTHON_PACKAGES.is_dir() else []
        done = work.run(
            [
                work.python, SCRIPT, "--worker", f"llama-8b-{work.shapes.layers}l", variant,
                "--device", "cuda", "--seconds", str(SECONDS),
            ],
            PYTHONPATH=":".join([*packages, *([known] if known else [])]),
            # A bundle has torchao without its own kernels, which float8 training does not call.
            TORCHAO_FORCE_SKIP_LOADING_SO_FILES="1",
        )
        missing = re.search(r"No module named '(torch\w*)", done.err)
        if done.code != 0 and missing:
            return unknown(f"this Python has no {missing[1]}")
        if done.code != 0 and "OutOfMemoryError" in done.err:
            return unknown("PyTorch ran out of GPU memory")
        lines = done.out.strip().splitlines()
        figures = parse_json(lines[-1]) if lines and done.code == 0 else None
        return Outcome(True, {"figures": figures}) if figures else failed_command(done)

    return check


def peer_items() -> list[Item]:
    items = []
    for number in range(1, ROUNDS + 1):
        for pair, (variant, plans) in enumerate(PAIRS):
            items.append(torch(number, variant))
            items += [own(number, pair, plan) for plan in plans]
    return items


def sharded_items() -> list[Item]:
    return [torch(1, variant) for variant in SHARDED]
