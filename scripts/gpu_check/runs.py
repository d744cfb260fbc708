"""Items that train: runs whose host is far ahead of the device, and losses against the cpu."""

from __future__ import annotations

import json
import shutil
from typing import Any, Callable, Mapping

from .item import Item, Outcome, Workspace, failed_command
from .process import Done
from .texts import toy_config

# Largest relative difference of the loss, cpu to cuda, over 50 steps: sums have another order, and
# in narrow formats a last bit of a sum that is rounded grows over the steps.
CURVE_TOLERANCE = {"fp32": 2e-4, "bf16": 5e-3}
QUANTIZED_CURVE_TOLERANCE = 2e-2
CURVES = ["fp32", "bf16", "te-delayed", "te-blockwise", "torchao-rowwise"]
CURVE_STEPS = 50
AHEAD_STEPS = 60
# The last loss is below it. An untrained model has ln 256 = 5.5, one that has learnt for 50 steps
# about 3.6. Single batches differ by some 0.1, so that two losses near the end say nothing.
AHEAD_LOSS = 4.5


def train(
    work: Workspace, plan: str, device: str, training: Mapping[str, Any], interval: int
) -> tuple[Done, list[dict[str, Any]]]:
    """A run of the toy preset, and the lines of its metrics that have a loss."""
    folder = work.work / f"run-{plan}-{device}"
    shutil.rmtree(folder, ignore_errors=True)
    done = work.fp8train(
        "--config", toy_config(work, training, interval), "--set", f"precision.plan={plan}",
        "--set", f"device={device}", "--output-dir", folder,
    )
    metrics = folder / "metrics.jsonl"
    lines = (
        [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        if metrics.exists()
        else []
    )
    return done, [line for line in lines if "loss" in line]


def ahead(training: Mapping[str, Any]) -> Callable[[Workspace], Outcome]:
    """Many steps between two readings of the loss."""

    def check(work: Workspace) -> Outcome:
        done, lines = train(work, "te-delayed", "cuda", {"max_steps": AHEAD_STEPS, **training}, 50)
        if done.code != 0 or not lines:
            return failed_command(done)
        losses = [line["loss"] for line in lines]
        fell = losses[-1] < AHEAD_LOSS
        last = lines[-1].get("step")
        report = "" if fell else f"the losses do not fall below {AHEAD_LOSS}: {losses}"
        return Outcome(fell, {"losses": losses, "last_step": last}, report)

    return check


def curve(plan: str) -> Callable[[Workspace], Outcome]:
    tolerance = CURVE_TOLERANCE.get(plan, QUANTIZED_CURVE_TOLERANCE)

    def check(work: Workspace) -> Outcome:
        losses = {}
        for device in ("cpu", "cuda"):
            done, lines = train(work, plan, device, {"max_steps": CURVE_STEPS}, 1)
            losses[device] = [line["loss"] for line in lines]
            if done.code != 0 or len(lines) != CURVE_STEPS:
                return failed_command(done)
        differences = [abs(a - b) / abs(b) for a, b in zip(losses["cuda"], losses["cpu"])]
        worst = max(differences)
        first = next(
            (step for step, difference in enumerate(differences) if difference > tolerance), None
        )
        detail = {
            "worst_relative_difference": worst,
            "tolerance": tolerance,
            "cpu": losses["cpu"][-1],
            "cuda": losses["cuda"][-1],
        }
        report = (
            ""
            if worst <= tolerance
            else f"step {first} is the first beyond {tolerance}\ncpu  {losses['cpu']}\n"
            f"cuda {losses['cuda']}"
        )
        return Outcome(worst <= tolerance, detail, report)

    return check


def ahead_items() -> list[Item]:
    return [
        Item("ahead.interval-50", 1, 5, 45, ahead({})),
        Item("ahead.accumulation-16", 1, 6, 60, ahead({"gradient_accumulation_steps": 16})),
    ]


def curve_items() -> list[Item]:
    return [Item(f"curve.{plan}", 3, 6, 60, curve(plan)) for plan in CURVES]
