"""Reads what a Catch2 test program prints with `--durations yes`."""

from __future__ import annotations

import re
from dataclasses import dataclass

RULE = "-" * 79
DOTS = "." * 79
END = "=" * 79
FAILED = re.compile(r"^\S+:\d+: FAILED:", re.MULTILINE)
DURATION = re.compile(r"^(\d+\.\d{3}) s: (.+)$")
SHOWN = 5  # failing assertions of a test case


@dataclass(frozen=True)
class Failure:
    """A test case, or one section of it, that failed."""

    test: str
    text: str  # the location and the failing assertions, whole


@dataclass(frozen=True)
class Report:
    failures: list[Failure]
    seconds: dict[str, float]  # of each test case and section that ended
    summary: str  # the counts; empty where the program did not reach its end

    @property
    def failed_tests(self) -> list[str]:
        return list(dict.fromkeys(failure.test for failure in self.failures))


def _shortened(body: str) -> str:
    """The first failing assertions whole, and how many follow."""
    starts = [match.start() for match in FAILED.finditer(body)]
    if len(starts) <= SHOWN:
        return body.strip()
    return (
        body[: starts[SHOWN]].strip() + f"\n... and {len(starts) - SHOWN} more failing assertions"
    )


def _name(header: str) -> str:
    """A long name of a test case continues in the next line; sections are indented."""
    return " ".join(
        line for line in header.splitlines() if line and not line.startswith(" ")
    ).strip()


def parse(output: str) -> Report:
    lines = output.splitlines()
    seconds = {match[2]: float(match[1]) for match in map(DURATION.match, lines) if match}
    ends = [i for i, line in enumerate(lines) if line == END]
    summary = "; ".join(line for line in lines[ends[-1] + 1:] if line) if ends else ""
    text = "\n".join(
        line for line in lines[: ends[-1] if ends else None] if not DURATION.match(line)
    )
    failures = []
    # header and body alternate after the text before the first rule
    parts = text.split(RULE + "\n")
    for header, body in zip(parts[1::2], parts[2::2]):
        if FAILED.search(body):
            location, _, rest = body.partition(DOTS + "\n")
            failures.append(
                Failure(
                    _name(header), f"{header.strip()}\n{location.strip()}\n\n{_shortened(rest)}"
                )
            )
    return Report(failures, seconds, summary)


def filter_of(name: str) -> str:
    """A filter that chooses the test case of exactly this name."""
    return re.sub(r"([\\,\[\]*])", r"\\\1", name)
