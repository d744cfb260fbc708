"""Runs a command with its two outputs in files, and ends it with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping, Sequence

TIMED_OUT = 124
NOT_FOUND = 127
GRACE_SECONDS = 2.0
WATCH_SECONDS = 0.1  # between two looks at what a command has written
# Gets what the command has written so far; returns the seconds that it still has, or None: as many
# as before.
Watch = Callable[[str], "float | None"]


@dataclass(frozen=True)
class Done:
    """A command that ended. A negative code is a signal, TIMED_OUT a limit that was reached."""

    code: int
    out: str
    err: str
    seconds: float

    def end(self) -> str:
        """How it ended, in words."""
        if self.code == TIMED_OUT:
            return f"ran past its limit of {self.seconds:.0f} s"
        if self.code < 0:
            return f"died of {signal.Signals(-self.code).name}"
        return f"exit code {self.code}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGKILL:
            return


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], out: Path, limit: float, watch: Watch | None) -> int:
    """The exit code, or TIMED_OUT."""
    deadline = time.monotonic() + max(limit, 0.1)
    while True:
        left = deadline - time.monotonic()
        try:
            return process.wait(max(min(left, WATCH_SECONDS) if watch else left, 0.0))
        except subprocess.TimeoutExpired:
            if watch:
                more = watch(_text(out))
                deadline = deadline if more is None else time.monotonic() + more
            if time.monotonic() >= deadline:
                return TIMED_OUT


def run(
    command: Sequence[str],
    log: str,
    limit: float,
    environment: Mapping[str, str],
    watch: Watch | None = None,
) -> Done:
    """Standard output goes to `log`.out, standard error to `log`.err; both hold what was written
    when a limit ends the command. `watch` is called while it runs, and once at its end."""
    out, err = Path(log + ".out"), Path(log + ".err")
    begin = time.monotonic()
    with out.open("wb") as out_file, err.open("wb") as err_file:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            return Done(NOT_FOUND, "", f"{command[0]}: {error.strerror}", 0.0)
        try:
            code = _wait(process, out, limit, watch)
        finally:
            _end_group(process)
            if watch:
                watch(_text(out))
    return Done(code, _text(out), _text(err), time.monotonic() - begin)
