"""Writes optim/muon.txt: what torch.optim.Muon does to the matrices of a fused weight, step by
step.

Run in this folder with torch 2.9 or later. Lines of words; fp32 numbers are their bit patterns in
hex, settings are decimal.

  muon <original | match_rms_adamw> <nesterov> <lr> <momentum> <decay> <ns steps> <steps> <columns>
  <matrices> <rows of each>
then the initial weights, and per step the gradients, the new weights and the new momentum, each
of all matrices in a row
"""

import os
import struct

import torch

STEPS = 4


def words(tensors):
    values = [v for t in tensors for v in t.detach().flatten().tolist()]
    return " ".join(format(struct.unpack("<I", struct.pack("<f", v))[0], "08x") for v in values)


def muon(out, seed, scale, nesterov, lr, momentum, decay, ns_steps, columns, rows):
    torch.manual_seed(seed)
    weights = [torch.nn.Parameter(torch.randn(r, columns)) for r in rows]
    optimizer = torch.optim.Muon(
        weights,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=decay,
        ns_steps=ns_steps,
        adjust_lr_fn=scale,
    )
    print(
        "muon",
        scale,
        int(nesterov),
        lr,
        momentum,
        decay,
        ns_steps,
        STEPS,
        columns,
        len(rows),
        *rows,
        file=out,
    )
    print(words(weights), file=out)
    for step in range(STEPS):
        for weight in weights:
            weight.grad = torch.randn_like(weight) * 10.0 ** (step % 3 - 4)
        gradients = [weight.grad.clone() for weight in weights]
        optimizer.step()
        for tensors in (
            gradients,
            weights,
            [optimizer.state[weight]["momentum_buffer"] for weight in weights],
        ):
            print(words(tensors), file=out)


os.makedirs("optim", exist_ok=True)
with open("optim/muon.txt", "w") as file:
    muon(file, 1, "original", True, 0.02, 0.95, 0.0, 5, 16, [16])
    muon(file, 2, "original", True, 0.02, 0.95, 0.1, 5, 8, [24])  # tall
    muon(file, 3, "original", False, 0.05, 0.9, 0.1, 5, 24, [8])  # wide
    muon(file, 4, "match_rms_adamw", True, 1e-3, 0.95, 0.1, 5, 12, [24, 8, 8])  # q, k, v
    muon(file, 5, "match_rms_adamw", False, 1e-3, 0.8, 0.0, 3, 16, [20, 20])  # gate, up
