#!/usr/bin/env python3
"""Losses and gradients of an FP8 Llama that is written from the sources of the plans and has no
code of the program (the package oracle), for tests/train/oracle_test.cpp. Each step has weights of
its own, drawn from integers, so that no checkpoint is needed and differences do not grow. A new
plan is a line in PLANS of oracle/plans.py.

Writes train/oracle.json and train/oracle_experts.json next to this script, or one of them: for each
step of each case the loss and, for every gradient, sums of its elements with random signs; with
experts also their loads, the losses of routers and the biases that follow; the same for wrong
oracles, each of which breaks one rule, in the steps in which they are farthest from the right one.

    make_oracle.py [oracle | oracle_experts]

Needs numpy; neither the build nor the tests do."""

import json
import multiprocessing
import pathlib
import sys

import numpy as np
from oracle import cases, experts, llama, weights

PROJECTIONS, WRONG_STEPS, LEAST = 4, 4, 1e-3
TOKENS = llama.ROWS * llama.LENGTH


def steps_of(case, plan, steps):
    """Of each step the loss and the gradients, of a wide case those of the weights before they are
    spread; and what a model with experts has in addition."""
    plan, shape = plan if isinstance(plan, tuple) else (plan, case.experts)
    model = llama.Model(plan, case.layers, shape)
    for step in range(steps):
        batches = [
            weights.batch(step, m, TOKENS, llama.VOCABULARY) for m in range(case.micro_batches)
        ]
        values = llama.weights_of(step, case.layers, case.wide, shape)
        loss, gradients = model.step(values, batches)
        if case.wide:
            gradients = {n: g * weights.spread(n, g.shape) for n, g in gradients.items()}
        yield loss, gradients, of_experts(model, values) if shape else {}


def of_experts(model, values):
    found = {
        "loads": model.loads.tolist(),
        "dropped": int(model.dropped),
        "router_losses": [float(f"{x:.7g}") for x in model.router_losses],
    }
    if model.shape.biased:
        found["bias"] = [
            experts.moved(values[f"layers.{i}.mlp.router.bias"], loads, model.shape.rate).tolist()
            for i, loads in enumerate(model.loads)
        ]
    return found


def written(step, case, result, digits):
    loss, gradients, more = result

    def rounded(x):
        return float(f"{x:.{digits}g}")

    return {
        "step": step,
        "loss": float(f"{loss:.10g}"),
        "projections": [
            [rounded(p) for p in weights.projections(name, gradient, PROJECTIONS)]
            for name, gradient in (
                (n, gradients[n]) for n, _ in llama.parameters(case.layers, case.experts)
            )
        ],
    } | more  # fmt: skip


def distance(a, b):
    """The relative difference of the gradients of linear layers in the plan's formats, or that of
    routers if it is larger."""

    def of(*layers):
        names = [name for name in a[1] if name.split(".")[-2] in layers]
        norms = {n: np.linalg.norm(a[1][n]) for n in names}  # 0: of an expert without tokens
        errors = [np.linalg.norm(a[1][n] - b[1][n]) / norms[n] for n in names if norms[n] > 0]
        return np.sqrt(np.mean(np.square(errors))) if errors else 0.0

    return max(of("qkv", "output", "up", "down"), of("router"))


def distinct(of_file):
    """Cases without those whose steps are another's (plans that differ in moments alone), and the
    index that each case has among them."""
    runs, shared = [], {}
    for case in of_file:
        same = [i for i, run in enumerate(runs) if run.same_steps(case)]
        shared[case.name] = same[0] if same else len(runs)
        runs += [] if same else [case]
    return runs, shared


def run_case(name, index):
    """The steps of the case, and the wrong oracles in the steps in which they are farthest."""
    of_file, wrong_of_file = FILES[name]
    case = distinct(of_file())[0][index]
    right = list(steps_of(case, case.plan, case.steps))
    wrong = []
    for rule, plan in [(rule, plan) for of, rule, plan in wrong_of_file() if of == case.name]:
        whole = case.plan.has_history or (not isinstance(plan, tuple) and plan.has_history)
        results = list(steps_of(case, plan, case.steps if whole else WRONG_STEPS))
        apart = np.array([distance(a, b) for a, b in zip(right, results)])
        farthest = [int(i) for i in np.argsort(-apart)[:WRONG_STEPS] if apart[i] >= LEAST]
        print(f"{case.name}: {rule}: {apart.max():.1e} in {farthest}", flush=True)
        written_steps = [written(i, case, results[i], 5) for i in sorted(farthest)]
        wrong.append({"of": case.name, "rule": rule, "steps": written_steps})
    return [written(i, case, result, 7) for i, result in enumerate(right)], wrong


FILES = {
    "oracle": (cases.cases, cases.wrong),
    "oracle_experts": (cases.expert_cases, cases.wrong_experts),
}


def make(name, pool):
    of_file = list(FILES[name][0]())
    runs, shared = distinct(of_file)
    results = pool.starmap(run_case, [(name, index) for index in range(len(runs))], 1)
    made = [
        {"name": case.name, "micro_batches": case.micro_batches, "layers": case.layers}
        | {"wide": case.wide} | case.request | {"steps": results[shared[case.name]][0]}
        for case in of_file
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
    path = pathlib.Path(__file__).parent / "train" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")


def main():
    with multiprocessing.Pool() as pool:
        for name in sys.argv[1:] or FILES:
            make(name, pool)


if __name__ == "__main__":
    main()
