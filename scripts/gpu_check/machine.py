"""The machine that a check runs on: its GPU, its clocks while an item runs, its tools."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from glob import glob
from typing import Any

FACTS = [
    "name", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "clocks.max.mem",
    "pstate", "ecc.mode.current", "compute_cap",
]
SAMPLED = [
    "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active",
]
SAMPLE_MILLISECONDS = 500
# Bits of clocks_event_reasons.active that mean that a limit holds the clocks down (NVML's
# nvmlClocksEventReasons).
LIMITS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)",
    0x80: "power brake",
}
# Where tools are that are installed but not on the path.
TOOL_PATHS = [
    "/usr/local/cuda/bin/{}",
    "/usr/local/cuda-*/bin/{}",
    "/opt/nvidia/nsight-compute/*/{}",
    "/opt/nvidia/nsight-systems/*/bin/{}",
]


def find_tool(name: str) -> str | None:
    found = shutil.which(name)
    if found:
        return found
    for path in TOOL_PATHS:
        matches = sorted(glob(path.format(name)))
        if matches:
            return matches[-1]
    return None


def query(fields: list[str]) -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU; none where it is not installed or does not answer."""
    tool = find_tool("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [dict(zip(fields, row)) for row in rows if len(row) == len(fields)]


class ClockSampler:
    """Reads clocks, power and heat of the first GPU twice a second until it is closed."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, list[str]]] = []
        self._process: subprocess.Popen[str] | None = None
        tool = find_tool("nvidia-smi")
        if tool is not None:
            command = [
                tool, "-i", "0", f"--query-gpu={','.join(SAMPLED)}",
                "--format=csv,noheader,nounits", "-lms", str(SAMPLE_MILLISECONDS),
            ]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            values = line.strip().split(", ")
            if len(values) == len(SAMPLED):
                self._samples.append((time.monotonic(), values))

    def since(self, begin: float) -> dict[str, Any]:
        """Of the samples taken from `begin` on; empty where there are none."""
        taken = [values for moment, values in list(self._samples) if moment >= begin]

        def numbers(column: int) -> list[float]:
            texts = [values[column] for values in taken]
            return [float(text) for text in texts if text.replace(".", "", 1).isdigit()]

        result: dict[str, Any] = {}
        for column, name in enumerate(["sm_mhz", "memory_mhz", "watts", "celsius"]):
            if numbers(column):
                result[name] = {
                    "median": statistics.median(numbers(column)),
                    "max": max(numbers(column)),
                }
        reasons = 0
        for values in taken:
            if values[4].startswith("0x"):
                reasons |= int(values[4], 16)
        limited = [text for bit, text in LIMITS.items() if reasons & bit]
        return {**result, "limited_by": limited} if limited else result

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
