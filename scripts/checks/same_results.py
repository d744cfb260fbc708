#!/usr/bin/env python3
"""Trains a toy in every plan with two builds of the program and compares what they computed, bit
for bit.

    scripts/checks/same_results.py BASE NEW [--plans NAME,...] [--layouts NAME,...] [--steps N]
        [--set KEY=VALUE]...
                                   [--store DIR] [--renamed FILE]

BASE and NEW are two fp8train programs. Each plan trains on one rank, on four in DDP, and on four in
ZeRO 1, 2 and 3; then the losses and gradient norms of every step and every tensor of the last
checkpoint are compared. Where NEW refuses or fails what BASE runs, that is a difference; what BASE
refuses is left out and named.

--set KEY=VALUE is a setting of both, for example another model.
--store DIR keeps the results of BASE, so that they are computed once; one folder for one BASE and
one list of settings.
--renamed FILE has lines "OLD NEW": tensors that have another name in NEW's checkpoints.

Needs mpirun for four ranks. Exit code: 0 nothing differs, 1 something differs, 2 usage.
"""

import argparse
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

LAYOUTS = {"one": (1, 0), "ddp": (4, 0), "zero1": (4, 1), "zero2": (4, 2), "zero3": (4, 3)}
COMPARED = ("loss", "grad_norm", "val_loss")
SECONDS = 300


def text():
    """A text of our own, the same in every run."""
    words = (
        "the scale of a block follows from its largest value and a code is what remains of it"
    ).split()
    state, line = 1, []
    for _ in range(12000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        line.append(words[(state >> 33) % len(words)])
    return " ".join(line)


def plans_of(program):
    """The names of `explain --plans`, in its order."""
    table = subprocess.run(
        [program, "explain", "--plans"], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)


def train(program, plan, layout, options, folder):
    """Returns {name: text of its bits} of one run, or the last line of its
    error under "refused"."""
    ranks, stage = LAYOUTS[layout]
    steps = options.steps
    settings = [
        "model.preset=toy",
        f"data.train=[{{path: {folder / 'text.txt'}}}]", "data.val_fraction=0.1",
        "data.seq_length=32", f"training.max_steps={steps}", "training.micro_batch_size=1",
        "training.global_batch_size=8", "optimizer.lr=3e-3", "scheduler.warmup_steps=4",
        f"eval.interval={steps // 2}", "eval.batches=2",
        "logging.interval=1", "logging.format=plain",
        f"checkpoint.interval={steps}", "parallelism.bucket_mb=1",
        f"parallelism.zero_stage={stage}", "device=cpu",
        f"precision.plan={plan}", f"output_dir={folder / 'run'}", *options.set,
    ]  # fmt: skip
    command = [program] + [word for setting in settings for word in ("--set", setting)]
    if ranks > 1:
        command = [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
            "-n", str(ranks),
        ] + command
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_MCA_mpi_yield_when_idle="1")
    subprocess.run(["rm", "-rf", folder / "run"], check=True)
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "rror" in line]
        return {"refused": (said or ["no message"])[0]}
    return {**metrics(folder / "run"), **checkpoint(folder / "run")}


def metrics(run):
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        found.update({
            f"{key} of step {values['step']}": repr(values[key])
            for key in COMPARED
            if key in values
        })
    return found


def checkpoint(run):
    """A hash for each tensor of each safetensors file of the last checkpoint."""
    last = max(
        (path for path in run.glob("checkpoints/*") if path.is_dir()), key=lambda path: path.name
    )
    found = {}
    for file in sorted(last.rglob("*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, tensor in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in tensor["data_offsets"])
                digest = hashlib.sha256(data[begin:end]).hexdigest()[:16]
                found[f"{file.relative_to(last)}: {name}"] = (
                    f"{tensor['dtype']} {tensor['shape']} {digest}"
                )
    return found


def renamed(found, names):
    """`found` with the new names of tensors."""
    result = {}
    for name, bits in found.items():
        file, _, tensor = name.partition(": ")
        result[f"{file}: {names.get(tensor, tensor)}" if tensor else name] = bits
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("--plans", help="comma-separated; default: all of BASE")
    parser.add_argument(
        "--layouts",
        default=",".join(LAYOUTS),
        help=f"comma-separated; default: {','.join(LAYOUTS)}",
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--renamed", type=Path)
    options = parser.parse_args()
    layouts = options.layouts.split(",")
    if unknown := [name for name in layouts if name not in LAYOUTS]:
        parser.error(f"Unknown layout '{unknown[0]}' (expected {', '.join(LAYOUTS)})")
    plans = options.plans.split(",") if options.plans else plans_of(options.base)
    names = (
        dict(line.split() for line in options.renamed.read_text().splitlines())
        if options.renamed
        else {}
    )

    different = compared = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(text())
        for plan in plans:
            for layout in layouts:
                stored = (
                    options.store / f"{plan}-{layout}-{options.steps}.json"
                    if options.store
                    else None
                )
                if stored and stored.exists():
                    before = json.loads(stored.read_text())
                else:
                    before = train(options.base, plan, layout, options, folder)
                    if stored:
                        stored.parent.mkdir(parents=True, exist_ok=True)
                        stored.write_text(json.dumps(before))
                if "refused" in before:
                    print(f"{plan} {layout}: the base refuses it: {before['refused']}", flush=True)
                    continue
                before = renamed(before, names)
                after = train(options.new, plan, layout, options, folder)
                wrong = [key for key in before | after if before.get(key) != after.get(key)]
                compared += 1
                different += bool(wrong)
                print(
                    f"{plan} {layout}: "
                    f"{f'{len(wrong)} differ' if wrong else f'{len(before)} equal'}",
                    flush=True,
                )
                for key in wrong[:4]:
                    print(f"    {key}: {before.get(key)} -> {after.get(key)}", flush=True)
    print(f"same_results: {compared} runs compared, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
