#!/usr/bin/env python3
"""How configurations of other programs are read: the tables of docs/reference/foreign_configs.md.

    scripts/bench/foreign_configs.py PROGRAM NAME=FOLDER... > TABLES

FOLDER is a checkout; its .yaml, .yml and .json files below `examples`, `tests`, `training`,
`compression`, `benchmarks` or `deepspeed` that speak of processes, ZeRO, precision or batches are
converted by `PROGRAM config convert`. NAME stands for the folder in the tables.
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

FOLDERS = ("examples", "tests", "training", "compression", "benchmarks", "deepspeed")
SUFFIXES = (".yaml", ".yml", ".json")
SPEAKS = re.compile(
    r"distributed_type|zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|fp8_config"
)
SHOWN = 5  # values of a key, keys of a reason


def settings_in(text):
    """(a.b, c) for each value of the YAML that the program prints."""
    section, found = "", []
    for line in text.splitlines():
        line = re.sub(r"\s+# .*", "", line)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, _, value = line.strip().partition(": ")
        if line.endswith(":"):
            section = line.strip()[:-1]
        else:
            found.append((f"{section}.{key}" if line.startswith(" ") else key, value))
    return found


def reasons_in(text):
    """(key, why) for each message of the program."""
    messages = [line.removeprefix("error: ").strip() for line in text.splitlines()]
    found = [re.sub(r"^\S+?:\d+:\d+: ", "", one) for one in messages if one not in ("", "error:")]
    return [one.partition(": ")[::2] for one in found]


def shown(names):
    listed = [f"`{name}`" for name in list(names)[:SHOWN]]
    return ", ".join([*listed, "..."] if len(names) > SHOWN else listed)


def row(*columns):
    return "| " + " | ".join(str(one).replace("|", "\\|") for one in columns) + " |"


class Tables:
    """What is counted over all files."""

    def __init__(self):
        self.files = collections.defaultdict(collections.Counter)  # program: read or refused
        self.values = collections.defaultdict(collections.Counter)  # our key: values
        self.reasons = collections.defaultdict(dict)  # why: {key: None}, in order
        self.refused = collections.defaultdict(list)  # why: files

    def add(self, name, file, settings, reasons):
        self.files[name]["refused" if reasons else "read"] += 1
        for key, value in settings:
            self.values[key][value] += 1
        for key, why in reasons:
            why = re.sub(r"^\d+ is not", "N is not", re.sub(r'got (".*?"|\S+)', "got another", why))
            self.reasons[why][key] = None
            if f"{name}: {file}" not in self.refused[why]:
                self.refused[why].append(f"{name}: {file}")

    def text(self):
        lines = ["| program | files | read | refused |", "|---|---|---|---|"]
        for name, count in self.files.items():
            lines.append(row(name, count.total(), count["read"], count["refused"]))
        lines += ["", "## What files are read as", "", "| key | files | values |", "|---|---|---|"]
        for key, values in sorted(self.values.items()):
            common = [value for value, _ in values.most_common()]
            lines.append(row(f"`{key}`", values.total(), shown(common)))
        lines += ["", "## Why files are refused", ""]
        lines += ["| reason | keys | files | the first |", "|---|---|---|---|"]
        for why, files in sorted(self.refused.items(), key=lambda item: -len(item[1])):
            lines.append(row(why, shown(self.reasons[why]), len(files), files[0]))
        return "\n".join(lines)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tables = Tables()
    for argument in sys.argv[2:]:
        name, _, folder = argument.partition("=")
        root = Path(folder)
        for path in sorted(root.rglob("*")):
            file = path.relative_to(root)
            speaks = path.suffix in SUFFIXES and file.parts[0] in FOLDERS
            if speaks and path.is_file() and SPEAKS.search(path.read_text(errors="replace")):
                done = subprocess.run(
                    [Path(sys.argv[1]).resolve(), "config", "convert", str(file)],
                    cwd=root, capture_output=True, text=True, check=False,
                )
                refused = done.returncode != 0
                tables.add(name, file, [] if refused else settings_in(done.stdout),
                           reasons_in(done.stderr) if refused else [])
    print(tables.text())


if __name__ == "__main__":
    main()
