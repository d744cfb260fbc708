#!/usr/bin/env python3
"""Trains one model under several plans and draws their validation losses: the figure of the README.

  scripts/bench/losses.py TEXT [--plans bf16,te-delayed,...] [--program build/bin/fp8train]
      [--jobs 2]
                          [--runs losses] [--out docs/losses.svg]

nanoGPT's laptop model on the text by characters, 2000 steps, evaluated every 100. A run whose
folder is complete is not repeated."""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

from quality_study.figure import STYLE, WIDTH, Scale, element, label, line

PLANS = "bf16,te-delayed,te-blockwise,msamp-o2,deepseek-v3"
COLOURS = ["axis", "tensor", "block", "mx", "row"]
STEPS = 2000
HEIGHT = 280
RECIPE = {
    "model.preset": "nanogpt-laptop", "data.tokenizer": "char", "data.val_fraction": 0.1,
    "data.seq_length": 64, "training.micro_batch_size": 12, "training.max_steps": STEPS,
    "training.seed": 1, "optimizer.lr": 1e-3, "optimizer.betas": "[0.9, 0.99]",
    "optimizer.weight_decay": 0.1, "optimizer.grad_clip": 1.0, "scheduler.type": "cosine",
    "scheduler.warmup_steps": 100, "scheduler.min_lr": 1e-4, "eval.interval": 100,
    "eval.batches": 40, "sample.interval": 0, "checkpoint.save_final": "false",
    "logging.interval": 100, "threads": 1, "device": "cpu",
}


def losses(folder):
    """(step, validation loss) of a run, as far as it is done."""
    metrics = folder / "metrics.jsonl"
    lines = (
        [json.loads(text) for text in metrics.read_text().splitlines()] if metrics.exists() else []
    )
    return [(entry["step"], entry["val_loss"]) for entry in lines if "val_loss" in entry]


def train(options, plan):
    folder = pathlib.Path(options.runs) / plan
    if not losses(folder) or losses(folder)[-1][0] < STEPS:
        settings = RECIPE | {
            "data.train": f"[{{path: {options.text}}}]",
            "precision.plan": plan,
            "output_dir": folder,
        }
        command = [options.program, "train", "--quiet"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        subprocess.run(command, check=True)
    return losses(folder)


def svg(curves):
    """curves: {plan: [(step, loss), ...]}"""
    high = max(loss for points in curves.values() for _, loss in points)
    low = min(loss for points in curves.values() for _, loss in points)
    across, up = Scale(0, STEPS, 60, WIDTH - 150), Scale(low - 0.02, high + 0.02, HEIGHT - 40, 36)
    parts = [
        label(
            8,
            20,
            "validation loss, nats per character, over steps: 0.8 M parameters, one seed",
            "head",
        )
    ]
    for tick in up.ticks():
        parts += [
            line(60, up(tick), WIDTH - 150, up(tick), "grid"),
            label(52, up(tick) + 4, f"{tick:.1f}", "soft", "end"),
        ]
    for tick in across.ticks():
        parts.append(label(across(tick), HEIGHT - 20, f"{tick:g}", "soft", "middle"))
    ends = sorted(curves, key=lambda plan: curves[plan][-1][1])
    for index, (plan, points) in enumerate(curves.items()):
        style = f"line {COLOURS[index]}"
        parts.append(
            element(
                "polyline",
                class_=style,
                points=" ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points),
            )
        )
        at = 60 + 22 * ends[::-1].index(plan)
        parts += [
            line(WIDTH - 146, at, WIDTH - 128, at, style),
            label(WIDTH - 122, at + 4, f"{plan} {points[-1][1]:.3f}"),
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text")
    parser.add_argument(
        "--plans", default=PLANS, help=f"at most {len(COLOURS)}, separated by commas"
    )
    parser.add_argument("--program", default="build/bin/fp8train")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", default="losses", help="folder of the runs")
    parser.add_argument("--out", default="docs/losses.svg")
    options = parser.parse_args()
    plans = options.plans.split(",")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        curves = dict(zip(plans, pool.map(lambda plan: train(options, plan), plans)))
    pathlib.Path(options.out).write_text(svg(curves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
