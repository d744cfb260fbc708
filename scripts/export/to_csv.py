#!/usr/bin/env python3
"""Metrics of a run as CSV, a row for each step.

    scripts/export/to_csv.py RUN [--tensors] [--out FILE]

RUN is the folder of a run (its output_dir). With --tensors: tensors.jsonl, a row for each
step and tensor. Without --out: to standard output. Parts of an object have names with
dots: fp8_snr_db.x.mean."""

import argparse
import csv
import sys
from pathlib import Path

from run_files import by_step, flat, lines_of


def tensor_rows(run):
    for line in lines_of(Path(run) / "tensors.jsonl"):
        for tensor, values in line["fp8"].items():
            yield {"step": line["step"], "tensor": tensor, **flat(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument(
        "--tensors", action="store_true", help="a row for each step and tensor, of tensors.jsonl"
    )
    parser.add_argument("--out", help="the file to write")
    options = parser.parse_args()
    rows = list(tensor_rows(options.run) if options.tensors else by_step(options.run))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (
        open(options.out, "w", newline="", encoding="utf-8") if options.out else sys.stdout as file
    ):
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
