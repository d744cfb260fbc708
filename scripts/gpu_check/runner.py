"""Runs items one after another and writes each result before the next one starts."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any, Sequence

from .item import (
    START_SECONDS, Item, ObjectReader, Outcome, Workspace, failed_command, too_small, unknown,
)
from .machine import ClockSampler
from .preflight import check_machine
from .results import Results
from .table import STATES, latest, same_machine

SHOWN_CHARACTERS = 6000  # of a failure on the screen; failures.txt has it whole
REPORT_CHARACTERS = 200_000  # of a failure in results.jsonl; the logs have all that was printed
MACHINE = Item("machine", 0, 15, 150, check_machine)
SHORT_OF_MEMORY = "out of GPU memory"  # as the program says it; the device works on after it
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


def outcome_of(figures: dict[str, Any], item: Item) -> Outcome:
    """Of what the program printed for one part."""
    if item.part and figures.get("plan") != item.part.plan:
        reason = f"figures of plan {figures.get('plan')} in the place of {item.part.plan}"
        return Outcome(False, {"reason": reason}, reason)
    if "error" in figures:
        return Outcome(False, {"reason": figures["error"]}, str(figures["error"]))
    return Outcome(True, {"figures": figures})


def fitting(waiting: Sequence[Item], left: float) -> list[Item]:
    """The first item, and those behind it that run in the same process, as far as the time
    suffices."""
    first, found = waiting[0], []
    seconds = START_SECONDS if first.part else 0.0
    for item in waiting:
        seconds += item.usual
        one_process = item.part and first.part and item.part.key == first.part.key
        if seconds > left or (found and not one_process):
            break
        found.append(item)
    return found


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
        assert item.check is not None
        begin = time.monotonic()
        self._work.begin(item.name, self.limit(item))
        try:
            outcome = item.check(self._work)
        except Exception as error:
            # An answer that this check does not understand ends one item, not the others.
            outcome = Outcome(
                False, {"reason": f"{type(error).__name__}: {error}"}, traceback.format_exc()
            )
        self.note(item, outcome, begin)
        return outcome

    def limit(self, item: Item) -> float:
        return min(item.limit * self._work.shapes.slack, self.left())

    def note(self, item: Item, outcome: Outcome, begin: float) -> None:
        """Writes the result of an item that began then."""
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

    def run_process(self, items: Sequence[Item]) -> list[tuple[Item, Outcome]]:
        """Parts of one process; each result is on disk before the next part is done. Where the
        process ends early, the parts after the one that ended it have no result."""
        part, work = items[0].part, self._work
        assert part is not None
        done: list[tuple[Item, Outcome]] = []
        reader, begin = ObjectReader(), time.monotonic()

        def note(outcome: Outcome) -> None:
            nonlocal begin
            done.append((items[len(done)], outcome))
            self.note(*done[-1], begin)
            begin = time.monotonic()

        def watch(out: str) -> float | None:
            before = len(done)
            for figures in reader.read(out)[: len(items) - before]:
                outcome = outcome_of(figures, items[len(done)])
                note(outcome)
                if outcome.passed is False and SHORT_OF_MEMORY not in outcome.report:
                    return 0.0  # the device may be spoilt: the others get a new process
            return self.limit(items[len(done)]) if before < len(done) < len(items) else None

        work.begin(items[0].name, self.limit(items[0]) + START_SECONDS)
        small = too_small(work)
        if small is not None:
            for _ in items:
                note(small)
            return done
        plans = [item.part.plan for item in items if item.part]
        ended = work.run(
            [work.program, "bench", *part.command(work, plans), "--device", "cuda", "--json"],
            most=self.left(), watch=watch,
        )
        if not done or (len(done) < len(items) and done[-1][1].passed):
            missing = ended.code == 2 and "unknown option" in ended.err
            note(unknown("this program lacks an option") if missing else failed_command(ended))
        return done

    def run_all(self, items: Sequence[Item]) -> Count:
        failed, left_out, without, waiting = [], [], [], list(items)  # without: figures
        while waiting:
            item = waiting[0]
            alone = item.partner in left_out + without
            together = [] if alone else fitting(waiting, self.left())
            if not together:
                left_out.append(waiting.pop(0).name)
                continue
            results = self.run_process(together) if item.part else [(item, self.run(item))]
            failed += [each.name for each, outcome in results if outcome.passed is False]
            without += [each.name for each, outcome in results if not outcome.passed]
            waiting = waiting[len(results):]
        return Count(failed, left_out)

    def close(self) -> None:
        self._clocks.close()
        self._results.conclude()


def undone(
    items: Sequence[Item], results: Results, retry: bool, facts: dict[str, Any]
) -> list[Item]:
    """Those without a result of this GPU and this model, and those that failed where `retry`."""
    ours = [result for result in results.all() if same_machine(result.get("facts", {}), facts)]
    known = latest(ours)
    return [
        item
        for item in items
        if item.name not in known or (retry and known[item.name]["passed"] is False)
    ]
