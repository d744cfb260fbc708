"""What an item of the check is, and what items have at hand."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from . import process
from .process import Done
from .shapes import Shapes

ROOT = Path(__file__).resolve().parents[2]
STDERR_LINES = 60  # of an item's standard error in its result
# To start the program: the driver and its context, cuBLASLt, the list of products that are known.
START_SECONDS = 4.0
PYTHON_PACKAGES = ROOT / "python"  # of a bundle, for PyTorch's items


@dataclass
class Outcome:
    """passed None: nothing was found out, and `detail["reason"]` says why."""

    passed: bool | None
    detail: dict[str, Any] = field(default_factory=dict)
    report: str = ""  # what a person needs to see of a failure, whole


@dataclass(frozen=True)
class Part:
    """Items next to each other with the same key run in one process, which prints an object for
    each of them as soon as it is done; to start it takes START_SECONDS."""

    key: str
    plan: str
    command: Callable[["Workspace", Sequence[str]], list[str]]  # of these plans


@dataclass(frozen=True)
class Item:
    name: str
    group: int
    usual: float  # seconds: it is not started with less
    limit: float  # seconds: it is ended then
    check: Callable[["Workspace"], Outcome] | None = None  # this, or `part`
    part: Part | None = None
    partner: str = ""  # where there is no time for this item, there is no use for its figures


def unknown(reason: str) -> Outcome:
    return Outcome(None, {"reason": reason})


class Workspace:
    """The program, folders and the running item's time; notes what its commands
    wrote to standard error."""

    def __init__(
        self,
        program: Path,
        tests: Path,
        work: Path,
        python: str,
        shapes: Shapes,
        environment: Mapping[str, str],
    ) -> None:
        self.program, self.tests, self.work, self.python = program, tests, work, python
        self.shapes, self.environment = shapes, dict(environment)
        self.facts: dict[str, Any] = {}  # of the machine and of what runs on it; in every result
        self.ended = -1.0
        self.stderr: list[str] = []
        self._item, self._commands, self._deadline = "", 0, 0.0
        (work / "logs").mkdir(parents=True, exist_ok=True)

    def begin(self, item: str, seconds: float) -> None:
        self._item, self._commands, self._deadline, self.stderr = (
            item,
            0,
            time.monotonic() + seconds,
            [],
        )

    def left(self) -> float:
        """Seconds that the running item has."""
        return self._deadline - time.monotonic()

    def run(
        self,
        command: Sequence[str | Path],
        most: float = float("inf"),
        watch: process.Watch | None = None,
        **environment: str,
    ) -> Done:
        """At most `most` seconds, and not longer than the item has."""
        self._commands += 1
        log = (
            self.work / "logs" / (self._item + (f".{self._commands}" if self._commands > 1 else ""))
        )
        words = [str(word) for word in command]
        earlier = list(self.stderr)

        def look(out: str) -> float | None:
            err = Path(f"{log}.err").read_bytes().decode(errors="replace")
            self.stderr = earlier + [line for line in err.splitlines() if line.strip()]
            return watch(out) if watch else None

        done = process.run(
            words, str(log), min(most, self.left()), {**self.environment, **environment},
            look if watch else None,
        )
        with open(f"{log}.err", "a", encoding="utf-8") as err:
            err.write(f"\n$ {' '.join(words)}\n{done.end()}, {done.seconds:.1f} s\n")
        self.stderr = earlier + [line for line in done.err.splitlines() if line.strip()]
        return done

    def fp8train(self, *words: str | Path, most: float = float("inf")) -> Done:
        return self.run([self.program, *words], most)

    def test_program(self, name: str) -> Path:
        return self.tests / name

    def stderr_end(self) -> list[str]:
        return list(dict.fromkeys(self.stderr))[-STDERR_LINES:]


def base_environment(work: Path) -> dict[str, str]:
    """The programs find their libraries themselves, so that tools are given none of them. What the
    program stores of this GPU is of this check alone."""
    return {"FP8TRAIN_CACHE_DIR": str(work / "cache"), **os.environ}


def parse_json(text: str) -> Any:
    """The object that standard output holds; None where there is none. Libraries may
    print lines before it."""
    start = re.search(r"^\{", text, re.MULTILINE)
    try:
        return json.loads(text[start.start():]) if start else None
    except json.JSONDecodeError:
        return None


class ObjectReader:
    """Reads objects one after another from what a command writes: alone, or of a list."""

    def __init__(self) -> None:
        self._next = 0

    def read(self, text: str) -> list[Any]:
        """Those that are whole in `text` and were not read before."""
        found = []
        for start in re.compile(r"^\{", re.MULTILINE).finditer(text):
            if start.start() < self._next:
                continue
            try:
                value, self._next = json.JSONDecoder().raw_decode(text, start.start())
            except json.JSONDecodeError:
                continue  # not there yet as a whole, or a library's line
            found.append(value)
        return found


def too_small(work: "Workspace") -> Outcome | None:
    """Where no model of this width fits into the GPU's memory."""
    if work.shapes.layers > 0:
        return None
    memory = work.facts.get("memory_gib", 0)
    return unknown(f"the GPU's memory of {memory:.0f} GiB is too small for a model of this width")


def failed_command(done: Done) -> Outcome:
    """The end of what a command said that should have worked."""
    said = "\n".join(part for part in (done.out.strip()[-6000:], done.err.strip()[-6000:]) if part)
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    reason = {"reason": errors[-1].removeprefix("error: ")} if errors else {}
    return Outcome(False, {"ended": done.end(), **reason}, f"{done.end()}\n{said}")


def bench(work: Workspace, *words: str, most: float = float("inf")) -> Outcome:
    """`fp8train bench`; its figures are the outcome's detail."""
    done = work.fp8train("bench", *words, "--device", "cuda", "--json", most=most)
    if done.code == 2 and "unknown option" in done.err:
        return unknown(f"this program has not all of these options: {' '.join(words)}")
    figures = parse_json(done.out)
    if done.code != 0 or figures is None:
        return failed_command(done)
    return Outcome(True, {"figures": figures})
