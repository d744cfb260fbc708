"""Items that measure: casts and copies, the products of a model's layers, attention, whole
steps, single kernels."""

from __future__ import annotations

import csv
import io
from typing import Any, Callable, Sequence

from .item import (
    Item, Outcome, Part, Workspace, bench, failed_command, parse_json, too_small, unknown,
)
from .machine import find_tool

# Plans whose steps are measured, in two processes.
PLANS = ["bf16", "te-delayed", "te-blockwise", "te-current"]
FURTHER_PLANS = ["deepseek-v3", "torchao-rowwise"]
STEP_SECONDS = 3.0
# A step's item: 1.5 s for the memory and the weights of up to 4 billion parameters, 2 to 3 s for
# cuDNN's plans and the first steps, then the measurement, 2 s for steps with spans and 1.5 s for
# the ceiling of products.
STEP_USUAL, STEP_LIMIT = 12, 60
TUNING_SECONDS = 8  # 16 algorithms of some 20 products, 8 times each
# Nsight Compute: metrics that one replay of a kernel, or a few, can count.
METRICS = {
    "gpu__time_duration.sum": "nanoseconds",
    "dram__bytes.sum": "bytes",
    "smsp__inst_executed.sum": "instructions",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
}
PROFILED_LAUNCHES = 400
LONGEST = 10


def step_command(*options: str) -> Callable[[Workspace, Sequence[str]], list[str]]:
    return lambda work, plans: [*work.shapes.step(",".join(plans), STEP_SECONDS), *options]


def step(plan: str, key: str) -> Item:
    return Item(f"step.{plan}", 2, STEP_USUAL, STEP_LIMIT, part=Part(key, plan, step_command()))


def tuned_step(name: str, plan: str) -> Item:
    """In a process of its own, which tunes its products."""
    part = Part(f"step.{name}", plan, step_command("--tune"))
    return Item(f"step.{name}", 2, STEP_USUAL + TUNING_SECONDS, 90, part=part)


def right_products(work: Workspace) -> Outcome:
    """Each product of the model's layers once, on operands whose product is known."""
    done = work.fp8train(
        "bench", *work.shapes.verified_products(), "--device", "cuda", "--json"
    )
    if done.code == 2 and "unknown option" in done.err:
        return unknown("this program does not verify products")
    figures = parse_json(done.out)
    if figures is None or done.code not in (0, 1):
        return failed_command(done)
    wrong = [entry for entry in figures["results"] if is_wrong(entry)]
    report = "\n".join(f"{product_text(entry)}: {error_text(entry)}" for entry in wrong)
    passed = not wrong and done.code == 0
    reason = {"reason": f"{len(wrong)} of {len(figures['results'])} products are wrong"}
    return Outcome(passed, {"figures": figures, **({} if passed else reason)}, report)


def is_wrong(entry: dict[str, Any]) -> bool:
    """A product that is refused, or whose error is beyond its bound or no number."""
    error = entry.get("error")
    return not isinstance(error, (int, float)) or not error <= entry["bound"]


def product_text(entry: dict[str, Any]) -> str:
    words = ("layer", "product", "shape", "operands", "result")
    return " ".join(str(entry[word]) for word in words if word in entry)


def error_text(entry: dict[str, Any]) -> str:
    if "refused" in entry:
        return str(entry["refused"])
    return f"error {entry.get('error')}, at most {entry.get('bound')}"


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
        small = too_small(work)
        if small is not None:
            return small
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


def step_items() -> list[Item]:
    return [
        *(step(plan, "step") for plan in PLANS),
        *(step(plan, "step.further") for plan in FURTHER_PLANS),
        tuned_step("te-delayed-tuned", "te-delayed"),
        tuned_step("fp8-fast", "fp8-fast"),
    ]


def product_items() -> list[Item]:
    """Per mode some 20 to 70 products of at least 30 launches of 1 to 15 ms each."""
    usual = {"bf16": 10, "tensor": 18, "row": 12, "block": 9}
    return [
        Item("products.right", 2, 25, 120, right_products),
        *(
            Item(f"products.{mode}", 2, seconds, 60, products("--modes", mode))
            for mode, seconds in usual.items()
        ),
        Item("products.tuned", 2, 60, 150, products("--modes", "bf16,tensor", "--tune")),
    ]


def speed_items() -> list[Item]:
    return [
        Item("casts", 2, 12, 60, lambda work: bench(work, *work.shapes.casts())),
        Item("attention", 2, 8, 40, lambda work: bench(work, *work.shapes.attention())),
        Item(
            "attention.deterministic",
            2,
            8,
            40,
            lambda work: bench(work, *work.shapes.attention(), "--deterministic"),
        ),
        *step_items(),
        *product_items(),
        Item("profile.te-delayed", 2, 45, 90, profile("te-delayed")),
        Item("profile.te-blockwise", 2, 45, 90, profile("te-blockwise")),
    ]
