#!/usr/bin/env python3
"""Whether exchanges of gradients hide behind backward, on a link that is slow and costs no
processor time.

    scripts/bench/overlap.py [--program build/bin/fp8train] [--ranks 2,4] [--rounds 3] [--seconds 3]
        [--share 0.4] [--json FILE]

Ranks of one thread each talk over TCP through a network namespace's own loopback, which `tc` (a
token bucket) slows down until moving the bytes of DDP takes `--share` of the backward pass. All
ranks share the link. Each namespace ends with its run: the machine's network stays as it is.
(Through shared memory, messages take processor time, which hides in nothing where ranks are as many
as cores.)

A round measures, one after another: as many single ranks side by side as there are ranks; each
layout over the loopback as it is; each over the slow link; and DDP over the slow link with one
bucket, which is exchanged after backward. Columns are medians over the rounds:

    ms         a step
    of single  the step against single ranks side by side
    link       what moving the step's bytes takes on the link, in ms
    hidden     part of that by which the slow link does not lengthen the step: 1 - (slow - as it is)
               / link
    in flight  time with messages under way, and the part of it within backward, as `bench step`
               prints them
    waited     after backward, for exchanges, in ms

Needs root (unshare, tc), mpirun of Open MPI. Exit codes: 0 done, 1 failed, 77 cannot work here.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The vocabulary is small, so that backward completes few gradients last.
STEP = [
    "bench", "step", "--device", "cpu", "--threads", "1", "--json", "--preset", "llama-42m",
    "--layers", "4", "--vocabulary", "2048", "--seq-length", "128", "--micro-batch-size", "8",
]
BLOCK = ["--bucket-mb", "13"]  # about those of a block
LAYOUTS = {"DDP": BLOCK, "ZeRO 1": ["--zero-stage", "1"], "ZeRO 3": ["--zero-stage", "3"]}
AT_END = "DDP, one bucket"
SINGLE = "single ranks"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
}


def check_machine():
    for tool in ("unshare", "ip", "tc", "mpirun"):
        if shutil.which(tool) is None:
            print(f"overlap.py: {tool} is not installed", file=sys.stderr)
            sys.exit(77)
    trial = subprocess.run(
        [
            "unshare",
            "--net",
            "sh",
            "-c",
            "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 256kb latency 50ms",
        ],
        capture_output=True,
        text=True,
    )
    if trial.returncode != 0:
        print(
            "overlap.py: this machine lets nobody make a namespace with a slow link: "
            f"{trial.stderr.strip()}",
            file=sys.stderr,
        )
        sys.exit(77)


class Bench:
    def __init__(self, program, seconds):
        self.command = [program, *STEP, "--seconds", str(seconds)]

    def on_ranks(self, ranks, words, rate=None):
        """rate: of the link, in bits per second; None: as it is."""
        link = "ip link set lo up" + (
            f" && tc qdisc add dev lo root tbf rate {int(rate)}bit burst 256kb latency 50ms"
            if rate
            else ""
        )
        run = subprocess.run(
            [
                "unshare", "--net", "sh", "-c", link + ' && exec "$@"', "sh", "mpirun",
                "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks),
                *self.command, *words,
            ],
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        if run.returncode != 0:
            sys.exit(f"overlap.py: {' '.join(words)} on {ranks} ranks failed:\n{run.stderr}")
        return json.loads(run.stdout)

    def side_by_side(self, count):
        runs = [
            subprocess.Popen(
                self.command, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENVIRONMENT}
            )
            for _ in range(count)
        ]
        reports = [json.loads(run.communicate()[0]) for run in runs]
        return {
            "seconds_per_step": statistics.mean(report["seconds_per_step"] for report in reports)
        }


def wire_bytes(report):
    return report["wire_bytes_within_node"] + report["wire_bytes_between_nodes"]


def measure(bench, ranks, rounds, share):
    """By name and round: over the link as it is, and over the slow one."""
    trial = bench.on_ranks(ranks, BLOCK)
    rate = 8 * ranks * wire_bytes(trial) / (share * trial["backward_seconds"])
    found = {"rate": rate, "fast": {}, "slow": {}}
    for at in range(rounds):
        print(f"{ranks} ranks, round {at + 1} of {rounds}", file=sys.stderr)
        found["fast"].setdefault(SINGLE, []).append(bench.side_by_side(ranks))
        for name, words in LAYOUTS.items():
            found["fast"].setdefault(name, []).append(bench.on_ranks(ranks, words))
            found["slow"].setdefault(name, []).append(bench.on_ranks(ranks, words, rate))
        found["slow"].setdefault(AT_END, []).append(
            bench.on_ranks(ranks, ["--bucket-mb", "65536"], rate)
        )
    return found


def median(values):
    return statistics.median(list(values))


def print_table(ranks, found):
    fast, slow = found["fast"], found["slow"]
    step = lambda report: report["seconds_per_step"]
    single = fast[SINGLE]
    rounds = range(len(single))
    print(
        f"\n{ranks} ranks, link of {found['rate'] / 1e9:.2f} Gbit/s; single ranks side by side "
        f"{1e3 * median(map(step, single)):.0f} ms\n"
    )
    print(
        "| layout | ms, link as it is | of single | ms, slow link | of single | link | hidden | in "
        "flight | in backward | waited |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in (*LAYOUTS, AT_END):
        free = fast[name if name in fast else "DDP"]
        link = 8 * ranks * wire_bytes(slow[name][0]) / found["rate"]
        of_single = lambda reports: median(step(reports[r]) / step(single[r]) for r in rounds)
        hidden = median(1 - (step(slow[name][r]) - step(free[r])) / link for r in rounds)
        print(
            f"| {name} | {1e3 * median(map(step, free)):.0f} | {of_single(free):.2f} | "
            f"{1e3 * median(map(step, slow[name])):.0f} | "
            f"{of_single(slow[name]):.2f} | {1e3 * link:.0f} | {100 * hidden:.0f} % | "
            f"{1e3 * median(r['messages_seconds'] for r in slow[name]):.0f} | "
            f"{100 * median(r['messages_in_backward'] for r in slow[name]):.0f} % | "
            f"{1e3 * median(r['exchange_waited_seconds'] for r in slow[name]):.0f} |"
        )
    against = median(step(slow["DDP"][r]) / step(slow[AT_END][r]) for r in rounds)
    print(f"\nDDP over the slow link against one bucket: {against:.3f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", default=str(ROOT / "build/bin/fp8train"))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--share", type=float, default=0.4)
    parser.add_argument("--json", help="write all reports here")
    arguments = parser.parse_args()
    check_machine()
    bench = Bench(arguments.program, arguments.seconds)
    everything = {}
    for ranks in map(int, arguments.ranks.split(",")):
        everything[ranks] = measure(bench, ranks, arguments.rounds, arguments.share)
        print_table(ranks, everything[ranks])
        sys.stdout.flush()
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
