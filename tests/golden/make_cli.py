#!/usr/bin/env python3
"""Losses of PyTorch for whole runs of the program: the folders tiny-llama and tiny-gpt2 (see
make_models.py) trained on a token file.

Writes, in the folder run next to this script, for each of the two models
  NAME.bin    a token file of llm.c (256 int32 of header, then u16 ids), shorter than the run, so
              that the second epoch begins within it
  NAME.json   the settings, and the loss of every step

The windows are consecutive (data.shuffle: false): sample i of an epoch begins at token i *
seq_length, step s takes the next micro_batch_size * gradient_accumulation_steps samples. The
learning rate is that of lib/optim/schedule.h.

Needs numpy, torch and transformers; neither the build nor the tests do.
"""
import json
import math
import pathlib

import numpy
import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
OUT = HERE / "run"
STEPS, BATCH, ACCUMULATE, LENGTH, TOKENS = 20, 2, 2, 16, 901
LR, MIN_LR, WARMUP, BETAS, EPS, DECAY, CLIP = 3e-3, 3e-4, 4, (0.9, 0.95), 1e-8, 0.1, 1.0


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * progress))


def write_tokens(path, vocabulary):
    # A walk with a preference for near ids: something that a model can learn.
    random = numpy.random.default_rng(5)
    ids = numpy.cumsum(random.integers(0, 4, TOKENS)) % vocabulary
    header = numpy.zeros(256, dtype="<i4")
    header[:3] = [20240520, 1, TOKENS]
    path.write_bytes(header.tobytes() + ids.astype("<u2").tobytes())
    return torch.from_numpy(ids.astype(numpy.int64))


def make(name):
    model = (
        AutoModelForCausalLM
        .from_pretrained(HERE / name, attn_implementation="eager")
        .float()
        .train()
    )
    ids = write_tokens(OUT / f"{name}.bin", model.config.vocab_size)
    windows = (TOKENS - 1) // LENGTH
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=DECAY), dict(params=vectors, weight_decay=0.0)],
        lr=LR,
        betas=BETAS,
        eps=EPS,
    )
    losses, norms, sample = [], [], 0
    for step in range(STEPS):
        optimizer.zero_grad()
        mean = 0.0
        for _ in range(ACCUMULATE):
            starts = [((sample + b) % windows) * LENGTH for b in range(BATCH)]
            sample += BATCH
            tokens = torch.stack([ids[s:s + LENGTH] for s in starts])
            targets = torch.stack([ids[s + 1:s + LENGTH + 1] for s in starts])
            logits = model(tokens).logits
            loss = (
                torch.nn.functional.cross_entropy(
                    logits.view(-1, logits.shape[-1]), targets.view(-1)
                )
                / ACCUMULATE
            )
            loss.backward()
            mean += loss.item()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(mean)
    expected = dict(
        steps=STEPS,
        micro_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        seq_length=LENGTH,
        lr=LR,
        min_lr=MIN_LR,
        warmup_steps=WARMUP,
        betas=BETAS,
        eps=EPS,
        weight_decay=DECAY,
        grad_clip=CLIP,
        losses=losses,
        grad_norms=norms,
    )
    (OUT / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(name, losses)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    make("tiny-llama")
    make("tiny-gpt2")
