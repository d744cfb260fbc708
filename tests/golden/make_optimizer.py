"""Writes ops/optimizer.txt: what torch's AdamW, SGD, clip_grad_norm_ and GradScaler do, step by
step.

Run in this folder with torch 2.x. Lines of words; fp32 numbers are their bit patterns in hex,
settings are decimal.

  adamw <n> <steps> <lr> <beta1> <beta2> <eps> <decay> <max_norm>     then n initial weights, and
  per step
      n gradients, the gradient norm, n new weights, n first moments, n second moments
  sgd <n> <steps> <lr> <momentum> <decay>                              then n initial weights, and
  per step
      n gradients, n new weights
  scaler <steps> <initial scale> <growth interval>                     then per step 1
  (overflow) or 0 and the new scale
"""

import random
import struct

import torch

N, STEPS = 19, 10


def words(values):
    return " ".join(format(struct.unpack("<I", struct.pack("<f", v))[0], "08x") for v in values)


def tensor_line(tensor):
    return words(tensor.detach().flatten().tolist())


def adamw(out, seed, lr, betas, eps, decay, max_norm):
    torch.manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(N))
    # foreach=False, fused=False: the plain order of operations.
    optimizer = torch.optim.AdamW(
        [weight], lr=lr, betas=betas, eps=eps, weight_decay=decay, foreach=False, fused=False
    )
    print("adamw", N, STEPS, lr, *betas, eps, decay, max_norm, file=out)
    print(tensor_line(weight), file=out)
    for step in range(STEPS):
        gradient = torch.randn(N) * 10.0 ** (step % 3 - 2)
        weight.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_([weight], max_norm if max_norm > 0 else float("inf"))
        optimizer.step()
        state = optimizer.state[weight]
        for line in (gradient, norm, weight, state["exp_avg"], state["exp_avg_sq"]):
            print(tensor_line(line), file=out)


def sgd(out, seed, lr, momentum, decay):
    torch.manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(N))
    optimizer = torch.optim.SGD([weight], lr=lr, momentum=momentum, foreach=False, fused=False)
    print("sgd", N, STEPS, lr, momentum, decay, file=out)
    print(tensor_line(weight), file=out)
    for _ in range(STEPS):
        weight.grad = torch.randn(N)
        with torch.no_grad():
            weight.mul_(1 - lr * decay)  # decoupled, as AdamW does it
        optimizer.step()
        print(tensor_line(weight.grad), file=out)
        print(tensor_line(weight), file=out)


def scaler(out, seed, initial, interval):
    random.seed(seed)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaling = torch.amp.GradScaler("cpu", init_scale=initial, growth_interval=interval)
    steps = 40
    print("scaler", steps, initial, interval, file=out)
    for _ in range(steps):
        overflow = random.random() < 0.15
        optimizer.zero_grad()
        scaling.scale((weight * (float("inf") if overflow else 1.0)).sum()).backward()
        scaling.step(optimizer)
        scaling.update()
        print(int(overflow), words([scaling.get_scale()]), file=out)


with open("ops/optimizer.txt", "w") as file:
    adamw(file, 1, 1e-3, (0.9, 0.95), 1e-8, 0.1, 0.0)
    adamw(file, 2, 3e-4, (0.9, 0.999), 1e-8, 0.0, 0.0)
    adamw(file, 3, 1e-2, (0.3, 0.5), 1e-5, 0.01, 0.0)
    adamw(file, 4, 1e-3, (0.8, 0.99), 1e-8, 0.1, 1.0)
    sgd(file, 5, 0.1, 0.0, 0.0)
    sgd(file, 6, 0.05, 0.9, 0.1)
    scaler(file, 7, 65536.0, 4)
    scaler(file, 8, 2.0**126, 2)  # growth stops before infinity
