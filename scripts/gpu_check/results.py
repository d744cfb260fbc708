"""results.jsonl, one line for each item that ended, and what is made of it: the table, the whole
failures, the archive of logs."""

from __future__ import annotations

import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any, Iterable

from .table import latest, render

ARCHIVE_SECONDS = 10.0  # between two writings of the archive while items run, and
ARCHIVE_SHARE = 20.0  # this many times as long as the last one took


def read_results(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Lines in order. One that a killed run left half written is passed over."""
    results = []
    for path in paths:
        for line in (
            path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        ):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(entry, dict) and "item" in entry:
                results.append(entry)
    return results


def replace(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


class Results:
    """Appends; everything is on disk when add() returns."""

    def __init__(self, out: Path, logs: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.logs, self.path = out, logs, out / "results.jsonl"
        self._next_archive = 0.0
        self._restore_logs()
        if (
            self.path.exists()
            and not self.path.read_bytes().endswith(b"\n")
            and self.path.stat().st_size > 0
        ):
            with self.path.open("ab") as file:  # behind a line that a killed run left
                file.write(b"\n")

    def _restore_logs(self) -> None:
        """The archive still holds the logs of earlier starts."""
        archive = self.out / "logs.tar.gz"
        if archive.exists():
            with tarfile.open(archive) as opened:
                earlier = [
                    member
                    for member in opened
                    if member.isreg()
                    and member.name.startswith("logs/")
                    and ".." not in member.name
                ]
                opened.extractall(self.logs.parent, members=earlier)

    def all(self) -> list[dict[str, Any]]:
        return read_results([self.path])

    def add(self, result: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if time.monotonic() > self._next_archive:
            self.conclude()

    def conclude(self) -> None:
        """The table, the failures and the archive, as results are now."""
        begin = time.monotonic()
        results = self.all()
        replace(self.out / "table.txt", render(results))
        failures = [
            f"##### {name}\n{result.get('report', '')}\n"
            for name, result in latest(results).items()
            if result["passed"] is False
        ]
        replace(self.out / "failures.txt", "\n".join(failures))
        fresh = self.out / "logs.tar.gz.new"
        with tarfile.open(fresh, "w:gz", compresslevel=4) as archive:
            archive.add(self.logs, "logs")
        os.replace(fresh, self.out / "logs.tar.gz")
        end = time.monotonic()
        self._next_archive = end + max(ARCHIVE_SECONDS, ARCHIVE_SHARE * (end - begin))
