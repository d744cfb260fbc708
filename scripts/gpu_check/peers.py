"""Items that measure PyTorch and fp8train alternately on the same model, each in
a process of its own."""

from __future__ import annotations

import os
import re
from typing import Callable

from .item import ROOT, Item, Outcome, Workspace, bench, failed_command, parse_json, unknown

MODEL = "llama-8b-16l"
SCRIPT = ROOT / "scripts/bench/peers.py"
SECONDS = 6.0
# PyTorch, fp8train, PyTorch, ...
PAIRS = [
    ("bf16-compile", "bf16"),
    ("torchao-fp8-compile", "te-delayed"),
    ("torchao-rowwise-compile", "torchao-rowwise"),
]
ROUNDS = 2
SHARDED = [f"{variant}-fsdp" for variant, _ in PAIRS]


def own(plan: str) -> Callable[[Workspace], Outcome]:
    return lambda work: bench(work, *work.shapes.step(plan, SECONDS), "--tune")


def torch(variant: str) -> Callable[[Workspace], Outcome]:
    def check(work: Workspace) -> Outcome:
        done = work.run(
            [
                work.python, SCRIPT, "--worker", MODEL, variant, "--device", "cuda",
                "--seconds", str(SECONDS),
            ],
            LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH", ""),
        )
        missing = re.search(r"No module named '(torch\w*)", done.err)
        if done.code != 0 and missing:
            return unknown(f"this Python has no {missing[1]}")
        lines = done.out.strip().splitlines()
        figures = parse_json(lines[-1]) if lines and done.code == 0 else None
        return Outcome(True, {"figures": figures}) if figures else failed_command(done)

    return check


def peer_items() -> list[Item]:
    items = []
    for number in range(1, ROUNDS + 1):
        for variant, plan in PAIRS:
            items.append(Item(f"peers.{number}.torch.{variant}", 3, 40, 120, torch(variant)))
            items.append(Item(f"peers.{number}.own.{plan}", 3, 25, 80, own(plan)))
    return items


def sharded_items() -> list[Item]:
    return [Item(f"peers.1.torch.{variant}", 3, 35, 120, torch(variant)) for variant in SHARDED]
