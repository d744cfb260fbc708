"""The command line; see ../gpu_check.sh."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .item import ROOT, START_SECONDS, Item, Workspace, base_environment
from .items import GROUPS, chosen
from .results import Results, read_results
from .runner import CLOSING_SECONDS, MACHINE, Runner, fitting, undone
from .shapes import LARGE, SMALL
from .table import render

GROUP_SECONDS = 540.0  # of each group, where no budget is given


def stop(number: int, _: FrameType | None) -> NoReturn:
    """Ends the running command on the way out, and what is done stays."""
    sys.exit(128 + number)


def default_program() -> Path:
    folders = [ROOT, ROOT / "build/bundle/fp8train", ROOT / "build"]
    return next(
        (folder for folder in folders if (folder / "bin/fp8train").exists()), ROOT / "build"
    )


def budget_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
    return seconds


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check.sh")
    parser.add_argument(
        "--program", type=Path, help="a bundle or a build folder, or the program itself"
    )
    parser.add_argument(
        "--tests",
        type=Path,
        help="the folder of the test programs; that of the program where it is not given",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-check")
    parser.add_argument(
        "--work",
        type=Path,
        help="for logs and runs; a folder of its own under the system's temporary one",
    )
    parser.add_argument("--python", default=sys.executable, help="that has torch and torchao")
    parser.add_argument("--group", type=int, action="append", choices=sorted(GROUPS), default=[])
    parser.add_argument("--only", action="append", default=[], metavar="NAMES")
    parser.add_argument("--skip", action="append", default=[], metavar="NAMES")
    parser.add_argument("--budget", type=budget_seconds, metavar="SECONDS")
    parser.add_argument("--resume", action="store_true", help="leave out what results.jsonl has")
    parser.add_argument(
        "--retry", action="store_true", help="as --resume, but what failed runs again"
    )
    parser.add_argument(
        "--small", action="store_true", help="small models and matrices, to try the check itself"
    )
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--table",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print the table of these results.jsonl together, and run nothing",
    )
    arguments = parser.parse_args()
    for name in ("only", "skip"):
        setattr(
            arguments,
            name,
            [part for text in getattr(arguments, name) for part in text.split(",") if part],
        )
    return arguments


def workspace(arguments: argparse.Namespace) -> Workspace:
    path = (arguments.program or default_program()).resolve()
    program = path if path.is_file() else path / "bin/fp8train"
    if not program.exists():
        sys.exit(f"{program} is missing: build first, or give --program")
    tests = arguments.tests.resolve() if arguments.tests else program.parent
    work = (
        arguments.work.resolve() if arguments.work else Path(tempfile.mkdtemp(prefix="gpu-check-"))
    )
    return Workspace(
        program, tests, work, arguments.python, SMALL if arguments.small else LARGE,
        base_environment(work),
    )


def print_list(items: list[Item], budget: float | None) -> None:
    """What runs in which order, and when each item has usually ended; with a budget what fits."""
    waiting, ended, left_out = list(items), MACHINE.usual, set()
    while waiting:
        left = (budget or float("inf")) - CLOSING_SECONDS - ended
        together = [] if waiting[0].partner in left_out else fitting(waiting, left)
        if not together:
            left_out.add(waiting[0].name)
        for number, item in enumerate(together):
            starting = START_SECONDS if item.part and number == 0 else 0.0
            ended += starting + item.usual
            print(
                f"{item.group}  {item.name:<36} usually {starting + item.usual:3.0f} s, at most "
                f"{item.limit:3.0f} s; ended after {ended:4.0f} s"
            )
        waiting = waiting[len(together) or 1:]


def main() -> int:
    arguments = parse_arguments()
    if arguments.table:
        print(render(read_results(arguments.table)))
        return 0
    try:
        items = chosen(arguments.group, arguments.only, arguments.skip)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.list:
        print_list(items, arguments.budget)
        return 0
    work = workspace(arguments)
    results = Results(arguments.out.resolve(), work.work / "logs")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    runner = Runner(
        work, results, arguments.budget or GROUP_SECONDS * len({item.group for item in items})
    )
    try:
        if not items:
            print("nothing is left to do")
            return 0
        outcome = runner.run(MACHINE)
        if not {"gpu", "fp8_modes"} & set(work.facts):
            return 2  # else even a program that multiplies nothing has kernels to test
        if arguments.resume or arguments.retry:
            items = undone(items, results, arguments.retry, work.facts)
            if not items:
                print("nothing is left to do")
        count = runner.run_all(items)
        failed = (["machine"] if outcome.passed is False else []) + count.failed
        print(f"{len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
        if count.left_out:
            print(f"no time was left for {', '.join(count.left_out)}; --resume continues with them")
        return 1 if failed or count.left_out else 0
    finally:
        runner.close()
        print(f"results.jsonl, table.txt, failures.txt and logs.tar.gz are in {results.out}")


if __name__ == "__main__":
    sys.exit(main())
