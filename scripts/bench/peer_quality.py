#!/usr/bin/env python3
"""nanoGPT's laptop recipe in PyTorch, for comparing final losses with fp8train's on the same text
and split.

    scripts/bench/peer_quality.py TEXT [--seeds 1,2,3] [--variants fp32,bf16] [--steps 2000]
        [--threads N] [--json FILE]

4 layers, 4 heads, 128 wide, context 64, no biases, no dropout; batches of 12 random windows; AdamW
(0.9, 0.99), decay 0.1 on matrices, clip 1.0; learning rate 1e-3 after 100 steps of warm-up, cosine
to 1e-4. Characters; the first 90 % of the text train, the rest validates. The loss reported covers
the whole validation split once, in consecutive windows of 64 (the last one shorter), every
character but the first being a target once.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from venv_support import use_torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CONTEXT, BATCH = 64, 12
PEAK, LOWEST, WARMUP = 1e-3, 1e-4, 100


def learning_rate(step, steps):
    """Linear to PEAK over WARMUP steps, then cosine to LOWEST at the last step."""
    if step < WARMUP:
        return PEAK * (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return LOWEST + 0.5 * (1 + math.cos(math.pi * min(1.0, progress))) * (PEAK - LOWEST)


def read_splits(path):
    """Ids of the characters, in two parts; the size of the alphabet."""
    import torch

    text = Path(path).read_text(encoding="utf-8")
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    data = torch.tensor([ids[character] for character in text], dtype=torch.int64)
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:], len(ids)


def validation_loss(model, autocast, data):
    """Mean over every target of the split, and their number."""
    import torch

    total, count = 0.0, 0
    targets = len(data) - 1
    whole = targets // CONTEXT
    with torch.no_grad():
        starts = [range(first, min(first + 128, whole)) for first in range(0, whole, 128)]
        batches = [
            (
                torch.stack([data[i * CONTEXT : (i + 1) * CONTEXT] for i in group]),
                torch.stack([data[i * CONTEXT + 1 : (i + 1) * CONTEXT + 1] for i in group]),
            )
            for group in starts
        ]
        if targets > whole * CONTEXT:
            batches.append((data[whole * CONTEXT:-1][None], data[whole * CONTEXT + 1:][None]))
        for tokens, wanted in batches:
            with autocast():
                total += model(tokens, wanted, reduction="sum").item()
            count += wanted.numel()
    return total / count, count


def train(path, variant, seed, steps):
    import torch
    from torch_models import Shape, adamw, build

    training, validation, vocab = read_splits(path)
    model, runner, autocast = build(Shape("gpt2", 4, 4, 4, 128, 512, vocab, CONTEXT), variant, seed)
    optimizer = adamw(model, PEAK, (0.9, 0.99), 0.1)
    generator = torch.Generator().manual_seed(seed)
    begin = time.perf_counter()
    loss = None
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        starts = torch.randint(len(training) - CONTEXT, (BATCH,), generator=generator)
        windows = torch.stack([training[s:s + CONTEXT + 1] for s in starts.tolist()])
        with autocast():
            loss = runner(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 500 == 0:
            print(
                f"{variant}, seed {seed}, step {step + 1}: loss {loss.item():.4f}",
                file=sys.stderr,
                flush=True,
            )
    seconds = time.perf_counter() - begin
    model.eval()
    value, targets = validation_loss(model, autocast, validation)
    return {
        "variant": variant,
        "seed": seed,
        "steps": steps,
        "val_loss": value,
        "val_targets": targets,
        "last_train_loss": loss.item(),
        "seconds": seconds,
        "tokens_per_second": steps * BATCH * CONTEXT / seconds,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--variants", default="fp32,bf16", help="of fp32, bf16, torchao-fp8")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--venv", type=Path, default=ROOT / "build/peers-venv")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    use_torch(arguments.venv)
    import torch

    torch.set_num_threads(arguments.threads)
    runs = [train(arguments.text, variant, int(seed), arguments.steps)
            for seed in arguments.seeds.split(",") for variant in arguments.variants.split(",")]
    print(
        "| variant | "
        + " | ".join(f"seed {seed}" for seed in arguments.seeds.split(","))
        + " | mean |"
    )
    print("|---|" + "---|" * (len(arguments.seeds.split(",")) + 1))
    for variant in arguments.variants.split(","):
        losses = [run["val_loss"] for run in runs if run["variant"] == variant]
        print(
            f"| {variant} | "
            + " | ".join(f"{value:.4f}" for value in losses)
            + f" | {statistics.mean(losses):.4f} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
