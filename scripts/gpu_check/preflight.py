"""Before the items: which machine this is, what the program finds there, and
whether it computes at all."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from .item import Outcome, Workspace, failed_command, parse_json
from .machine import FACTS, find_tool, query
from .texts import toy_config

TOOLS = ["nvidia-smi", "compute-sanitizer", "ncu", "nsys", "nvcc"]
PACKAGES = [
    "torch", "torchao", "triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu12",
]


def wheel_folders() -> list[str]:
    """Folders of the CUDA libraries that come as Python packages."""
    found: list[str] = []
    for folder in sys.path:
        for pattern in ("nvidia/*/lib", "nvidia/cu*/lib"):
            found += (
                sorted(str(each) for each in Path(folder).glob(pattern) if each.is_dir())
                if folder
                else []
            )
    return list(dict.fromkeys(found))


def python_packages() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return versions


def versions(work: Workspace) -> dict[str, Any]:
    """The program's own, and which libraries it found where it says so."""
    short = work.fp8train("--version", most=20)
    long = work.fp8train("--version", "-v", most=40)
    result: dict[str, Any] = {"version": short.out.strip()}
    if long.code == 0:
        result["libraries"] = long.out.strip().splitlines()
    return result


def attention(work: Workspace) -> str | None:
    """Which kernels a run would take, as `check` says it."""
    done = work.fp8train("check", "--config", toy_config(work, {}), "--set", "device=cuda", most=60)
    marked = [
        line.split("attention:", 1)[1].strip()
        for line in done.out.splitlines()
        if "attention:" in line
    ]
    return marked[0] if marked else None


def fp8_modes(figures: dict[str, Any]) -> dict[str, str]:
    """Of each kind of operand: "native", or why not."""
    return {
        entry["operands"]: entry.get("dequantized", "native")
        for entry in figures["results"]
        if "e4m3" in entry["operands"]
    }


def computes(work: Workspace) -> tuple[dict[str, Any] | None, Outcome]:
    """A product of each kind on the GPU. Where the program does not find its libraries, once more
    with those of this Python."""
    command = ("bench", "gemm", "--sizes", "256", "--seconds", "0.1", "--device", "cuda", "--json")
    done = work.fp8train(*command, most=90)
    figures = parse_json(done.out) if done.code == 0 else None
    if figures is None and wheel_folders():
        known = work.environment.get("LD_LIBRARY_PATH", "")
        folders = [*([known] if known else []), *wheel_folders()]
        work.environment["LD_LIBRARY_PATH"] = ":".join(folders)
        again = work.fp8train(*command, most=90)
        figures = parse_json(again.out) if again.code == 0 else None
        if figures is not None:
            reason = "libraries were found only through LD_LIBRARY_PATH"
            return figures, Outcome(
                False, {"reason": reason}, f"{reason}; without it: {failed_command(done).report}"
            )
        work.environment["LD_LIBRARY_PATH"] = known
    return figures, Outcome(True) if figures is not None else failed_command(done)


def memory_gib(gpu: dict[str, str], lines: list[str]) -> float:
    """Of the GPU, as its driver or the program says it; 0 where neither does."""
    mebibytes = re.match(r"(\d+) MiB", gpu.get("memory.total", ""))
    if mebibytes:
        return int(mebibytes[1]) / 1024
    said = re.search(r"^GPU: .*?(\d+) GiB", "\n".join(lines), re.MULTILINE)
    return float(said[1]) if said else 0.0


def without_cudnn(work: Workspace) -> str:
    """Why the figures of a GPU with FP8 products would mean nothing: attention on our own kernels
    takes three times as long. Empty where cuDNN runs it, or is not wanted."""
    said = work.facts.get("attention") or "check names no attention"
    has_fp8 = float(work.facts.get("compute_cap", "9.0")) >= 8.9
    wanted = work.environment.get("FP8TRAIN_CUDA_ATTENTION") != "own"
    if not has_fp8 or not wanted or said.startswith("cuDNN"):
        return ""
    return f"attention does not run in cuDNN: {said}"


def check_machine(work: Workspace) -> Outcome:
    """Fills work.facts, which every result carries, and fits the models to the GPU's memory. Where
    the facts have neither "gpu" nor "fp8_modes", nothing can run."""
    gpus = query(FACTS) or query(FACTS[:2])
    if gpus:
        work.run([find_tool("nvidia-smi") or "nvidia-smi", "-q"], 20)
        work.facts |= {
            "gpu": gpus[0]["name"],
            "driver": gpus[0]["driver_version"],
            "compute_cap": gpus[0].get("compute_cap", "9.0"),
        }
    found = versions(work)
    work.facts["program"] = found["version"]
    memory = memory_gib(gpus[0] if gpus else {}, found.get("libraries", []))
    if memory > 0:
        work.facts["memory_gib"] = round(memory, 1)
        work.shapes = work.shapes.fitted(memory)
    work.facts["layers"] = work.shapes.layers
    figures, outcome = computes(work)
    if figures is not None:
        work.facts["fp8_modes"] = fp8_modes(figures)
        work.facts["attention"] = attention(work)
        reason = without_cudnn(work)
        if reason and outcome.passed:
            outcome = Outcome(False, {"reason": reason}, reason)
    outcome.detail |= {
        "gpus": gpus,
        "tools": {tool: find_tool(tool) for tool in TOOLS},
        "packages": python_packages(),
        **found,
    }
    return outcome
