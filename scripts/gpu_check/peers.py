"""Items that measure PyTorch and fp8train alternately on the same model, PyTorch in a process for
each variant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable

from .item import (
    PYTHON_PACKAGES, ROOT, Item, Outcome, Part, Workspace, failed_command, parse_json, too_small,
    unknown,
)
from .process import Done
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
IMPORTS = (
    "import torch, torchao, torchao.float8; "
    "print(torch.__version__, torchao.__version__, torch.cuda.get_device_name())"
)
# Imports 8 s, compiling 25 to 40 s, the measurement.
TORCH_USUAL, TORCH_LIMIT = 60, 150


def own_command(work: Workspace, plans: list[str]) -> list[str]:
    return [*work.shapes.step(",".join(plans), SECONDS), "--tune"]


def own(number: int, pair: int, plan: str, variant: str) -> Item:
    usual = STEP_USUAL + SECONDS / 2 + TUNING_SECONDS / 2  # tuned once, for all rounds
    part = Part(f"peers.{number}.{pair}", plan, own_command)
    return Item(
        f"peers.{number}.own.{plan}", 3, usual, STEP_LIMIT + 20, part=part,
        partner=f"peers.{number}.torch.{variant}",
    )


def torch(number: int, variant: str) -> Item:
    return Item(
        f"peers.{number}.torch.{variant}", 3, TORCH_USUAL, TORCH_LIMIT, torch_check(variant)
    )


def run_python(work: Workspace, *words: str | Path) -> tuple[Done, str]:
    """With the packages of a bundle; also which of PyTorch's packages is missing."""
    known = work.environment.get("PYTHONPATH", "")
    packages = [str(PYTHON_PACKAGES)] if PYTHON_PACKAGES.is_dir() else []
    done = work.run(
        [work.python, *words],
        PYTHONPATH=":".join([*packages, *([known] if known else [])]),
        # A bundle has torchao without its own kernels, which float8 training does not call.
        TORCHAO_FORCE_SKIP_LOADING_SO_FILES="1",
    )
    missing = re.search(r"No module named '(torch\w*)", done.err) if done.code != 0 else None
    return done, missing[1] if missing else ""


def imports(work: Workspace) -> Outcome:
    """Whether what is measured next can be imported, which takes a tenth of a measurement."""
    done, missing = run_python(work, "-c", IMPORTS)
    if missing:
        return unknown(f"this Python has no {missing}")
    if done.code != 0:
        return failed_command(done)
    return Outcome(True, {"versions": done.out.strip().splitlines()[-1]})


def torch_check(variant: str) -> Callable[[Workspace], Outcome]:
    def check(work: Workspace) -> Outcome:
        small = too_small(work)
        if small is not None:
            return small
        done, missing = run_python(
            work, SCRIPT, "--worker", f"llama-8b-{work.shapes.layers}l", variant,
            "--device", "cuda", "--seconds", str(SECONDS),
        )
        if missing:
            return unknown(f"this Python has no {missing}")
        if done.code != 0 and "OutOfMemoryError" in done.err:
            return unknown("PyTorch ran out of GPU memory")
        lines = done.out.strip().splitlines()
        figures = parse_json(lines[-1]) if lines and done.code == 0 else None
        return Outcome(True, {"figures": figures}) if figures else failed_command(done)

    return check


def peer_items() -> list[Item]:
    items = [Item("peers.imports", 3, 12, 60, imports)]
    for number in range(1, ROUNDS + 1):
        for pair, (variant, plans) in enumerate(PAIRS):
            items.append(torch(number, variant))
            items += [own(number, pair, plan, variant) for plan in plans]
    return items


def sharded_items() -> list[Item]:
    return [torch(1, variant) for variant in SHARDED]
