#!/usr/bin/env python3
"""A training step of GPT-2 124M in llm.c's CPU trainer (fp32) and in fp8train, on this machine, in
one run.

    scripts/bench/llmc.py LLMC_SOURCE [--micro-batch 4] [--length 256] [--steps 3] [--threads N]
        [--json FILE]

LLMC_SOURCE is a checkout of llm.c (https://github.com/karpathy/llm.c). Its train_gpt2.c is compiled
as its Makefile does (-Ofast -march=native -fopenmp) with a driver that times forward, backward and
update on random tokens, starting from random weights in its checkpoint format. fp8train's plans are
measured before and after it with `fp8train bench step`. Figures are tokens per second of the median
step after one step of warm-up.
"""

import argparse
import array
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANS = ["fp32", "bf16", "te-delayed", "te-current"]
LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY, PADDED_VOCABULARY = 12, 12, 768, 1024, 50257, 50304
CHECKPOINT_MAGIC, CHECKPOINT_VERSION = 20240326, 3

DRIVER = r"""
#define TESTING
#include "train_gpt2.c"

static int random_token(uint64_t *state) {
  *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (int)((*state >> 33) % 50257);
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const int B = atoi(argv[2]), T = atoi(argv[3]), steps = atoi(argv[4]);
  GPT2 model;
  gpt2_build_from_checkpoint(&model, argv[1]);
  int *inputs = malloc(sizeof(int) * B * T), *targets = malloc(sizeof(int) * B * T);
  uint64_t state = 1;
  for (int step = 0; step <= steps; step++) {
    for (int i = 0; i < B * T; i++) {
      inputs[i] = random_token(&state);
      targets[i] = random_token(&state);
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    gpt2_forward(&model, inputs, targets, B, T);
    gpt2_zero_grad(&model);
    gpt2_backward(&model);
    gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) / 1e9;
    fprintf(stderr, "seconds %f loss %f\n", seconds, model.mean_loss);
  }
  return 0;
}
"""


def parameter_shapes():
    """Elements and scale of each tensor in llm.c's order; a scale of None means ones."""
    c, layers = WIDTH, LAYERS
    return [
        (PADDED_VOCABULARY * c, 0.02), (CONTEXT * c, 0.02), (layers * c, None), (layers * c, 0.0),
        (layers * 3 * c * c, 0.02), (layers * 3 * c, 0.0), (layers * c * c, 0.02),
        (layers * c, 0.0), (layers * c, None), (layers * c, 0.0), (layers * 4 * c * c, 0.02),
        (layers * 4 * c, 0.0), (layers * 4 * c * c, 0.02), (layers * c, 0.0), (c, None), (c, 0.0),
    ]


def write_checkpoint(path):
    """Random weights: a block of normal numbers, repeated from changing positions (their values do
    not matter for speed)."""
    generator = random.Random(1)
    block = array.array("f", (generator.gauss(0.0, 0.02) for _ in range(1 << 16)))
    with open(path, "wb") as file:
        header = [0] * 256
        header[:8] = [
            CHECKPOINT_MAGIC, CHECKPOINT_VERSION, CONTEXT, VOCABULARY, LAYERS, HEADS, WIDTH,
            PADDED_VOCABULARY,
        ]
        file.write(struct.pack("<256i", *header))
        for count, scale in parameter_shapes():
            written = 0
            while written < count:
                size = min(count - written, len(block) // 2)
                if scale:
                    begin = generator.randrange(len(block) - size + 1)
                    block[begin:begin + size].tofile(file)
                else:
                    (array.array("f", [1.0 if scale is None else 0.0]) * size).tofile(file)
                written += size


def measure_llmc(source, arguments):
    with tempfile.TemporaryDirectory() as folder:
        driver, program, weights = (
            Path(folder) / name for name in ("driver.c", "driver", "weights.bin")
        )
        driver.write_text(DRIVER)
        subprocess.run(
            [
                "gcc", "-Ofast", "-march=native", "-fopenmp", "-DOMP",
                "-Wno-unused-result", f"-I{source}", str(driver), "-o", str(program), "-lm",
            ],
            check=True,
        )
        write_checkpoint(weights)
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
        run = subprocess.run(
            [
                str(program), str(weights), str(arguments.micro_batch), str(arguments.length),
                str(arguments.steps),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    seconds = [
        float(line.split()[1]) for line in run.stderr.splitlines() if line.startswith("seconds")
    ]
    return arguments.micro_batch * arguments.length / statistics.median(seconds[1:])


def measure_plan(plan, arguments):
    run = subprocess.run(
        [
            str(ROOT / "build/bin/fp8train"), "bench", "step", "--json", "--preset", "gpt2-124m",
            "--plan", plan, "--threads", str(arguments.threads),
            "--micro-batch-size", str(arguments.micro_batch), "--seq-length", str(arguments.length),
            "--seconds", "10",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not (arguments.source / "train_gpt2.c").exists():
        sys.exit(f"{arguments.source} holds no train_gpt2.c: give a checkout of llm.c")
    source = arguments.source.resolve()
    before = {plan: measure_plan(plan, arguments) for plan in PLANS}
    peer = measure_llmc(source, arguments)
    after = {plan: measure_plan(plan, arguments) for plan in PLANS}
    rates = {plan: statistics.mean((before[plan], after[plan])) for plan in PLANS}
    print("| GPT-2 124M, tokens/s | | of llm.c |\n|---|---|---|")
    print(f"| llm.c fp32 | {peer:.1f} | 1.00 |")
    for plan, rate in rates.items():
        print(f"| fp8train {plan} | {rate:.1f} | {rate / peer:.1f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"llm.c": peer, **rates}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
