#!/usr/bin/env python3
"""How configurations of other programs are read: one line for each file, as in
docs/reference/foreign_configs.md.

    scripts/bench/foreign_configs.py PROGRAM NAME=FOLDER... > TABLE

FOLDER is a checkout; its .yaml, .yml and .json files below `examples`, `tests`, `training`,
`compression`, `benchmarks` or `deepspeed` that speak of processes, ZeRO, precision or batches are
converted by `PROGRAM config convert`. NAME stands for the folder in the table.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDERS = ("examples", "tests", "training", "compression", "benchmarks", "deepspeed")
SUFFIXES = (".yaml", ".yml", ".json")
SPEAKS = re.compile(
    r"distributed_type|zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|fp8_config"
)


def flat(text):
    """`a.b: c` for each value of the YAML that the program prints."""
    section, found = "", []
    for line in text.splitlines():
        line = re.sub(r"\s+# .*", "", line)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, _, value = line.strip().partition(": ")
        if line.endswith(":"):
            section = line.strip()[:-1]
        else:
            found.append(f"{section}.{key}: {value}" if line.startswith(" ") else f"{key}: {value}")
    return ", ".join(f"`{entry}`" for entry in found) or "nothing that a run needs"


def row(program, name, root, file):
    done = subprocess.run(
        [program, "config", "convert", file], cwd=root, capture_output=True, text=True, check=False
    )
    what = flat(done.stdout)
    if done.returncode != 0:
        reasons = [
            line.removeprefix("error: ").strip()
            for line in done.stderr.splitlines()
            if line.strip() not in ("", "error:")
        ]
        what = "refused: " + "; ".join(
            re.sub(r"^\S+?:(\d+):\d+: ", "", reason) for reason in reasons[:3]
        )
        what += " ..." if len(reasons) > 3 else ""
    return f"| {name}: {file} | {what.replace('|', chr(92) + '|')} |"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print("| file | read as |\n|---|---|")
    for argument in sys.argv[2:]:
        name, _, folder = argument.partition("=")
        root = Path(folder)
        for path in sorted(root.rglob("*")):
            file = path.relative_to(root)
            speaks = path.suffix in SUFFIXES and file.parts[0] in FOLDERS
            if speaks and path.is_file() and SPEAKS.search(path.read_text(errors="replace")):
                print(row(sys.argv[1], name, root, str(file)))


if __name__ == "__main__":
    main()
