"""Items that measure: casts and copies, the products of a model's layers, attention, whole
steps, single kernels."""

from __future__ import annotations

import csv
import io
from typing import Any, Callable

from .item import Item, Outcome, Workspace, bench, failed_command, unknown
from .machine import find_tool

# Plans whose steps are measured after those of bf16 and te-delayed.
PLANS = ["te-current", "te-blockwise", "deepseek-v3", "torchao-rowwise"]
# Nsight Compute: metrics that one replay of a kernel, or a few, can count.
METRICS = {
    "gpu__time_duration.sum": "nanoseconds",
    "dram__bytes.sum": "bytes",
    "smsp__inst_executed.sum": "instructions",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
}
PROFILED_LAUNCHES = 400
LONGEST = 10


def step(plan: str) -> Callable[[Workspace], Outcome]:
    return lambda work: bench(work, *work.shapes.step(plan, 5), "--tune")


def products(*words: str) -> Callable[[Workspace], Outcome]:
    def check(work: Workspace) -> Outcome:
        outcome = bench(work, *work.shapes.products(*words))
        errors = [
            entry
            for entry in outcome.detail.get("figures", {}).get("results", [])
            if "error" in entry
        ]
        if errors:
            text = "\n".join(
                f"{entry['layer']} {entry['product']} {entry['operands']} to {entry['result']}: "
                f"{entry['error']}"
                for entry in errors
            )
            return Outcome(False, outcome.detail, text)
        return outcome

    return check


def number(text: str) -> float:
    return (
        float(text.replace(",", "")) if text.replace(",", "").replace(".", "", 1).isdigit() else 0.0
    )


def longest_kernels(table: str) -> list[dict[str, Any]]:
    """From Nsight Compute's raw page in base units: a row of names, one of units,
    and one for each launch."""
    lines = table.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    kernels: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if not row["ID"]:
            continue  # the units
        kernel = kernels.setdefault(
            row["Kernel Name"],
            {"kernel": row["Kernel Name"], "launches": 0, **dict.fromkeys(METRICS.values(), 0.0)},
        )
        kernel["launches"] += 1
        for metric, name in METRICS.items():
            kernel[name] += number(row.get(metric) or "")
    ordered = sorted(kernels.values(), key=lambda kernel: -kernel["nanoseconds"])[:LONGEST]
    for kernel in ordered:
        kernel["occupancy"] /= kernel["launches"]
        kernel["gbytes_per_second"] = (
            kernel["bytes"] / kernel["nanoseconds"] if kernel["nanoseconds"] else 0.0
        )
    return ordered


def profile(plan: str) -> Callable[[Workspace], Outcome]:
    """The first step of a model of two layers, launch by launch."""
    def check(work: Workspace) -> Outcome:
        command = ["bench", *work.shapes.step(plan, 0.1, 2), "--device", "cuda", "--json"]
        ncu = find_tool("ncu")
        if ncu is None:
            return profile_system(work, command)
        done = work.run([
            ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
            "--metrics", ",".join(METRICS), "--launch-count", str(PROFILED_LAUNCHES),
            "--kill", "yes", work.program, *command,
        ])
        kernels = longest_kernels(done.out)
        if not kernels:
            return unknown(
                f"Nsight Compute counted nothing: {done.end()}: "
                f"{(done.out + done.err).strip()[-1500:]}"
            )
        return Outcome(True, {"kernels": kernels})

    return check


def profile_system(work: Workspace, command: list[str]) -> Outcome:
    """Nsight Systems instead, whose table of kernels stays in the log."""
    nsys = find_tool("nsys")
    if nsys is None:
        return unknown("neither ncu nor nsys is installed")
    done = work.run([
        nsys,
        "profile",
        "--trace",
        "cuda",
        "--cuda-graph-trace",
        "node",
        "--stats",
        "true",
        "--force-overwrite",
        "true",
        "--output",
        work.work / f"profile-{command[command.index('--plan') + 1]}",
        work.program,
        *command,
    ])
    if done.code != 0 or "cuda_gpu_kern_sum" not in done.out + done.err:
        return failed_command(done)
    return Outcome(
        True,
        {
            "table": (done.out + done.err)
            .split("cuda_gpu_kern_sum", 1)[1]
            .splitlines()[: LONGEST + 6]
        },
    )


def speed_items() -> list[Item]:
    return [
        Item("casts", 2, 12, 60, lambda work: bench(work, *work.shapes.casts())),
        Item("step.bf16", 2, 30, 90, step("bf16")),
        Item("step.te-delayed", 2, 30, 90, step("te-delayed")),
        *(
            Item(f"products.{mode}", 2, 20, 60, products("--modes", mode))
            for mode in ("bf16", "tensor", "row", "block")
        ),
        Item("attention", 2, 8, 40, lambda work: bench(work, *work.shapes.attention())),
        Item(
            "attention.deterministic",
            2,
            8,
            40,
            lambda work: bench(work, *work.shapes.attention(), "--deterministic"),
        ),
        *(Item(f"step.{plan}", 2, 30, 90, step(plan)) for plan in PLANS),
        Item("profile.te-delayed", 2, 30, 90, profile("te-delayed")),
        Item("profile.te-blockwise", 2, 30, 90, profile("te-blockwise")),
        Item("products.tuned", 2, 60, 150, products("--modes", "bf16,tensor", "--tune")),
    ]
