#!/usr/bin/env python3
"""Registers, shared memory and spills of every CUDA kernel, as ptxas reports them.

    scripts/kernel_resources.py [--build build] [--arch 90a] [--jobs N] [--all] [FILE.cu ...]

Compiles the .cu files of a configured build (all of them, or those named) once more for one architecture, keeps nothing, and prints a table: a line
for each kernel, its instances together (the most registers and shared memory of any); with --all a line for each instance. Exit code 1 when a kernel
spills registers to memory.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRY = re.compile(r"Compiling entry function '(\S+)' for")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def command_for(entry, arch):
    """The build's own command for one architecture, without its output."""
    words = shlex.split(entry["command"])
    if Path(words[0]).name == "ccache":
        words = words[1:]
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        elif not word.startswith(("--generate-code", "-gencode", "-arch")) and word not in ("-MD", "-c"):
            kept.append(word)
    return kept + [f"-arch=sm_{arch}", "-cubin", "-Xptxas", "-v", "-o", "/dev/null"]


def measure(entry, arch):
    """[(mangled name, registers, shared bytes, stack bytes, spilled bytes)] of a file."""
    done = subprocess.run(command_for(entry, arch), cwd=entry["directory"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{entry['file']} does not compile:\n{done.stderr[-2000:]}")
    kernels, name, stack, spilled = [], None, 0, 0
    for line in done.stderr.splitlines():
        if found := ENTRY.search(line):
            name = found[1]
        elif found := SPILLS.search(line):
            stack, spilled = int(found[1]), int(found[2]) + int(found[3])
        elif (found := USED.search(line)) and name:
            kernels.append((name, int(found[1]), int(found[2] or 0), stack, spilled))
            name = None
    return kernels


def demangle(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [re.sub(r"fp8train::(ops::cuda::)?|\(anonymous namespace\)::", "", line) for line in text.splitlines()]


def short_name(signature):
    """`void norm_kernel<4, float>(...)` -> norm_kernel"""
    return re.match(r"(?:void )?([\w:~]+)", signature)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--arch", default="90a")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    commands = arguments.build / "compile_commands.json"
    if not commands.exists():
        sys.exit(f"{commands} is missing: configure a build with CUDA first (scripts/build.sh)")
    wanted = {path.resolve() for path in arguments.files}
    entries = [e for e in json.loads(commands.read_text()) if e["file"].endswith(".cu") and (not wanted or Path(e["file"]) in wanted)]
    if not entries:
        sys.exit(f"{commands} has no such .cu file; was CUDA on when it was configured?")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        measured = list(pool.map(lambda entry: measure(entry, arguments.arch), entries))

    print(f"| file (sm_{arguments.arch}) | kernel | instances | registers | shared bytes | stack bytes | spilled bytes |\n|---|---|---|---|---|---|---|")
    spilling = 0
    for entry, kernels in zip(entries, measured):
        lines = {}
        for signature, kernel in zip(demangle([kernel[0] for kernel in kernels]), kernels):
            lines.setdefault(signature if arguments.all else short_name(signature), []).append(kernel[1:])
        for name, instances in sorted(lines.items()):
            most = [max(column) for column in zip(*instances)]
            spilling += most[3] > 0
            print(f"| {Path(entry['file']).name} | {name} | {len(instances)} | {' | '.join(map(str, most))} |")
    print(f"\n{spilling} kernels spill")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
