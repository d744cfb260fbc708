#!/usr/bin/env python3
"""Losses and gradients of an FP8 Llama that is written from the sources of the plans and has no
code of the program (the package oracle), for tests/train/oracle_test.cpp. Each step has weights of
its own, drawn from integers, so that no checkpoint is needed and differences do not grow. A new
plan is a line in PLANS of oracle/plans.py.

Writes train/oracle.json next to this script: for each step of each case the loss and, for every
gradient, sums of its elements with random signs; the same for wrong oracles, each of which breaks
one rule, in the steps in which they are farthest from the right one.

Needs numpy; neither the build nor the tests do."""

import json
import multiprocessing
import pathlib

import numpy as np
from oracle import cases, llama, weights

PROJECTIONS, WRONG_STEPS, LEAST = 4, 4, 1e-3
TOKENS = llama.ROWS * llama.LENGTH


def steps_of(case, plan, steps):
    """Of each step the loss and the gradients, of a wide case those of the weights before they are
    spread."""
    model = llama.Model(plan, case.layers)
    for step in range(steps):
        batches = [
            weights.batch(step, m, TOKENS, llama.VOCABULARY) for m in range(case.micro_batches)
        ]
        loss, gradients = model.step(llama.weights_of(step, case.layers, case.wide), batches)
        if case.wide:
            gradients = {n: g * weights.spread(n, g.shape) for n, g in gradients.items()}
        yield loss, gradients


def written(step, result, digits):
    loss, gradients = result

    def rounded(x):
        return float(f"{x:.{digits}g}")

    return {
        "step": step,
        "loss": float(f"{loss:.10g}"),
        "projections": [
            [rounded(p) for p in weights.projections(name, gradient, PROJECTIONS)]
            for name, gradient in ordered(gradients)
        ],
    }


def ordered(gradients):
    layers = sum(name.endswith("attention.qkv.weight") for name in gradients)
    return [(name, gradients[name]) for name, _ in llama.parameters(layers)]


def distance(a, b):
    """The relative difference of the gradients of linear layers in the plan's formats."""
    names = [name for name in a[1] if any(name.endswith(f".{w}.weight") for w in llama.WIDTHS)]
    errors = [np.linalg.norm(a[1][n] - b[1][n]) / np.linalg.norm(a[1][n]) for n in names]
    return np.sqrt(np.mean(np.square(errors)))


def distinct():
    """Cases without those whose steps are another's (plans that differ in moments alone), and the
    index that each case has among them."""
    runs, shared = [], {}
    for case in cases.cases():
        same = [i for i, run in enumerate(runs) if run.same_steps(case)]
        shared[case.name] = same[0] if same else len(runs)
        runs += [] if same else [case]
    return runs, shared


def run_case(index):
    """The steps of the case, and the wrong oracles in the steps in which they are farthest."""
    case = distinct()[0][index]
    right = list(steps_of(case, case.plan, case.steps))
    wrong = []
    for rule, plan in [(rule, plan) for name, rule, plan in cases.wrong() if name == case.name]:
        steps = case.steps if case.plan.has_history or plan.has_history else WRONG_STEPS
        results = list(steps_of(case, plan, steps))
        apart = np.array([distance(a, b) for a, b in zip(right, results)])
        farthest = [int(i) for i in np.argsort(-apart)[:WRONG_STEPS] if apart[i] >= LEAST]
        print(f"{case.name}: {rule}: {apart.max():.1e} in {farthest}", flush=True)
        written_steps = [written(i, results[i], 5) for i in sorted(farthest)]
        wrong.append({"of": case.name, "rule": rule, "steps": written_steps})
    return [written(i, result, 7) for i, result in enumerate(right)], wrong


def main():
    runs, shared = distinct()
    with multiprocessing.Pool() as pool:
        results = pool.map(run_case, range(len(runs)), 1)
    made = [
        {"name": case.name, "micro_batches": case.micro_batches, "layers": case.layers}
        | {"wide": case.wide} | case.request | {"steps": results[shared[case.name]][0]}
        for case in cases.cases()
    ]  # fmt: skip
    fixture = {
        "model": {
            "vocabulary": llama.VOCABULARY, "hidden": llama.HIDDEN, "inner": llama.INNER,
            "heads": llama.HEADS, "kv_heads": llama.KV_HEADS, "rows": llama.ROWS,
            "length": llama.LENGTH,
        },
        "projections": PROJECTIONS,
        "cases": made,
        "wrong": [entry for _, wrong in results for entry in wrong],
    }  # fmt: skip
    path = pathlib.Path(__file__).parent / "train" / "oracle.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
