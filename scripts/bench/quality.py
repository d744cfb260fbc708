#!/usr/bin/env python3
"""Trains small models in rows of the chart, with paired seeds, and prints the gap of each row to bf16.

  scripts/bench/quality.py tinyshakespeare.txt [--program build/bin/fp8train] [--rows te-delayed,coat] [--seeds 1,2,3]
                           [--models gpt2,llama] [--steps 2000] [--jobs 2] [--out quality]

gpt2 is nanoGPT's laptop model (4 layers, 4 heads, 128 wide, context 64), llama one of its size (4 layers, 4 heads, 2 kv heads, 128 wide,
ff 336 in SwiGLU). Each run has one thread, `jobs` of them at a time; bits do not depend on that. A run whose output folder is complete is not
repeated. The loss is the final one, over the whole validation split, in nats per character."""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys

MODELS = {
    "gpt2": ["model.preset=nanogpt-laptop"],
    "llama": ["model.hidden_size=128", "model.num_hidden_layers=4", "model.num_attention_heads=4", "model.num_key_value_heads=2",
              "model.intermediate_size=336", "model.max_position_embeddings=64", "model.tie_word_embeddings=true"],
}
RECIPE = ["data.tokenizer=char", "data.val_fraction=0.1", "data.seq_length=64", "training.micro_batch_size=12", "optimizer.lr=1e-3",
          "optimizer.betas=[0.9, 0.99]", "optimizer.weight_decay=0.1", "optimizer.grad_clip=1.0", "scheduler.type=cosine",
          "scheduler.warmup_steps=100", "scheduler.min_lr=1e-4", "eval.interval=0", "sample.interval=0", "checkpoint.save_final=false",
          "checkpoint.resume=never", "logging.interval=100", "threads=1", "device=cpu"]


def final_loss(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    losses = [json.loads(line) for line in lines]
    return next((line["val_loss"] for line in reversed(losses) if "val_loss" in line), None)


def train(options, model, row, seed):
    folder = pathlib.Path(options.out) / f"{model}-{row}-{seed}"
    loss = final_loss(folder)
    if loss is not None:
        return loss
    settings = MODELS[model] + RECIPE + [f"data.train=[{{path: {options.text}}}]", f"training.max_steps={options.steps}",
                                         f"training.seed={seed}", f"precision.plan={row}", f"output_dir={folder}"]
    command = [options.program, "train"] + [word for setting in settings for word in ("--set", setting)]
    result = subprocess.run(command, capture_output=True, text=True)
    loss = final_loss(folder) if result.returncode == 0 else None
    print(f"{model} {row} seed {seed}: {loss if loss is not None else result.stderr.strip()[-400:]}", file=sys.stderr, flush=True)
    return loss


def report(options, rows, seeds, losses):
    for model in options.models.split(","):
        print(f"\n| {model} | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | gap to bf16 |")
        print("|---" * (len(seeds) + 3) + "|")
        for row in rows:
            own = [losses.get((model, row, seed)) for seed in seeds]
            pairs = [(loss, losses.get((model, "bf16", seed))) for loss, seed in zip(own, seeds)]
            gaps = [loss / base - 1 for loss, base in pairs if loss is not None and base is not None]
            known = [loss for loss in own if loss is not None]
            mean = f"{statistics.mean(known):.4f}" if known else "-"
            gap = f"{100 * statistics.mean(gaps):+.2f} %" if gaps else "-"
            print(f"| {row} | " + " | ".join("-" if loss is None else f"{loss:.4f}" for loss in own) + f" | {mean} | {gap} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--program", default="build/bin/fp8train")
    parser.add_argument("--rows", required=True, help="separated by commas; bf16 is always among them")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--models", default="gpt2,llama")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default="quality")
    options = parser.parse_args()
    rows = list(dict.fromkeys(["bf16"] + options.rows.split(",")))
    seeds = [int(seed) for seed in options.seeds.split(",")]
    runs = [(model, row, seed) for seed in seeds for model in options.models.split(",") for row in rows]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        losses = dict(zip(runs, pool.map(lambda run: train(options, *run), runs)))
    report(options, rows, seeds, losses)
    return 0 if all(loss is not None for loss in losses.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
