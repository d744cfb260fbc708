"""Runs items one after another and writes each result before the next one starts."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Sequence

from .item import Item, Outcome, Workspace
from .machine import ClockSampler
from .preflight import check_machine
from .results import Results, latest
from .table import STATES

SHOWN_CHARACTERS = 6000  # of a failure on the screen; failures.txt has it whole
REPORT_CHARACTERS = 200_000  # of a failure in results.jsonl; the logs have all that was printed
MACHINE = Item("machine", 0, 10, 150, check_machine)
CLOSING_SECONDS = 3.0  # for table and archive


@dataclass(frozen=True)
class Count:
    failed: list[str]
    left_out: list[str]  # for want of time


def shown(report: str) -> str:
    if len(report) <= SHOWN_CHARACTERS:
        return report
    half = SHOWN_CHARACTERS // 2
    return f"{report[:half]}\n[... all of it: failures.txt ...]\n{report[-half:]}"


class Runner:
    def __init__(self, work: Workspace, results: Results, budget: float) -> None:
        self._work, self._results = work, results
        self._deadline = time.monotonic() + budget
        self._clocks = ClockSampler()

    def left(self) -> float:
        return self._deadline - time.monotonic() - CLOSING_SECONDS

    def run(self, item: Item) -> Outcome:
        """Within the item's limit and what is left of the budget; the result is on
        disk when this returns."""
        begin = time.monotonic()
        self._work.begin(item.name, min(item.limit * self._work.shapes.patience, self.left()))
        try:
            outcome = item.check(self._work)
        except Exception as error:
            # An answer that this check does not understand ends one item, not the others.
            outcome = Outcome(
                False, {"reason": f"{type(error).__name__}: {error}"}, traceback.format_exc()
            )
        seconds = time.monotonic() - begin
        self._results.add({
            "item": item.name,
            "group": item.group,
            "passed": outcome.passed,
            "seconds": round(seconds, 2),
            "at": round(time.time()),
            "facts": self._work.facts,
            "clocks": self._clocks.since(begin),
            "detail": outcome.detail,
            "report": outcome.report[:REPORT_CHARACTERS],
            "stderr": self._work.stderr_end(),
        })
        reason = outcome.detail.get("reason", "")
        print(
            f"{item.name}: {STATES[outcome.passed]}, {seconds:.1f} "
            f"s{' (' + str(reason)[:200] + ')' if reason else ''}",
            flush=True,
        )
        if outcome.passed is False:
            print("    " + shown(outcome.report).replace("\n", "\n    "), flush=True)
        return outcome

    def run_all(self, items: Sequence[Item]) -> Count:
        failed, left_out = [], []
        for item in items:
            if self.left() < item.usual:
                left_out.append(item.name)
            elif self.run(item).passed is False:
                failed.append(item.name)
        return Count(failed, left_out)

    def close(self) -> None:
        self._clocks.close()
        self._results.conclude()


def undone(items: Sequence[Item], results: Results, retry: bool) -> list[Item]:
    """Those without a result, and those that failed where `retry`."""
    known = latest(results.all())
    return [
        item
        for item in items
        if item.name not in known or (retry and known[item.name]["passed"] is False)
    ]
