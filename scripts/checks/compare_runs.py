#!/usr/bin/env python3
"""Compares trainings of one machine with those of another, whose products add in another order.

    scripts/checks/compare_runs.py FOLDER        each FOLDER/native-PLAN with FOLDER/arm-PLAN
    scripts/checks/compare_runs.py --text FILE   writes the text that both train on

Losses have to agree to a thousandth in every step. Of the tensors of the last checkpoints, prints
how many are equal in all bits, and how far the others are apart. Exit code 1: losses differ."""

import json
import struct
import sys
from pathlib import Path

from same_results import text

TOLERANCE = 1e-3


def losses(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def tensors(run):
    """The bytes and the type of each tensor of the only checkpoint."""
    found = {}
    for file in sorted(run.glob("checkpoints/step-*/*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, tensor in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in tensor["data_offsets"])
                found[f"{file.name}: {name}"] = (data[begin:end], tensor["dtype"])
    return found


def distance(a, b, dtype):
    """The largest difference of two fp32 tensors by the largest magnitude; of others the share of
    bytes that differ."""
    if dtype != "F32":
        return sum(x != y for x, y in zip(a, b)) / len(a)
    count = f"<{len(a) // 4}f"
    x, y = struct.unpack(count, a), struct.unpack(count, b)
    return max(abs(u - v) for u, v in zip(x, y)) / max(map(abs, x))


def compare(plan, native, other):
    """Prints a line; returns whether the losses agree."""
    a, b = losses(native), losses(other)
    loss = max(abs(x - y) / x for x, y in zip(a, b, strict=True))
    one, two = tensors(native), tensors(other)
    assert one and one.keys() == two.keys(), "the checkpoints have other tensors"
    apart = {
        name: distance(bits, two[name][0], dtype)
        for name, (bits, dtype) in one.items()
        if bits != two[name][0]
    }
    print(
        f"{plan}: losses of {len(a)} steps within {loss:.1e}; {len(one) - len(apart)} of"
        f" {len(one)} tensors have the same bits"
    )
    for name in sorted(apart, key=apart.get)[-3:]:
        print(f"    {name} ({one[name][1]}): {apart[name]:.1e}")
    return len(a) > 0 and loss < TOLERANCE


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--text":
        Path(sys.argv[2]).write_text(text())
        return 0
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    runs = sorted(folder.glob("native-*"))
    agree = [
        compare(run.name.removeprefix("native-"), run, Path(str(run).replace("native-", "arm-")))
        for run in runs
    ]
    return 0 if agree and all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
