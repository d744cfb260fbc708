#!/usr/bin/env python3
"""Measures what a plan costs in loss, on runs that share everything but the plan.

  scripts/bench/quality.py train TEXT [--models llama-128] [--bases 1,2,3] [--plans te-delayed,coat]
  scripts/bench/quality.py outliers TEXT [--models llama-512] [--bases 1,2] [--kinds block,one,each]
  scripts/bench/quality.py report [docs/reference/benchmarks.md]
  scripts/bench/quality.py figure docs/quality.svg
  scripts/bench/quality.py benefit docs/benefit.svg

train: for each base (a seed: initial weights and order of the data) a bf16 run is trained and saved
half-way; from that checkpoint, moments included, every plan trains on with the same batches, its
learning rate falling to 0. bf16 itself is among them three times, with sums in another order, and
once after a single step in FP8 (quality_study/models.py). The loss is the mean of the last five
evaluations on held-out text, once with the products as they were trained and once in bf16.

report prints the tables, or puts them between the two comments of a page that name them; figure
draws them. benefit draws the last model's with the bytes per parameter of each plan and its
predicted speed on a GPU, for README.

outliers: bases are changed so that they compute the same function with larger channels at the input
of products, and evaluated under each plan.

Each run has one thread, --jobs of them at a time; bits do not depend on that. Results are appended
to --results as they are done, and what is there is not repeated: the same command continues."""

import argparse
import concurrent.futures
import pathlib
import sys

from quality_study import benefit, figure, models, outliers, report
from quality_study.program import Program, ProgramError
from quality_study.results import Results

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- quality.py report -->", "<!-- end of the report -->"
EXPONENTS = "0,12,14,16,18,20"
OUTLIER_PLANS = "te-current,te-delayed,msamp-o2,torchao-rowwise,te-blockwise,deepseek-v3,te-mxfp8"


def words(text):
    return text.split(",")


def trained(program, options):
    """(key, function) of each run, base after base, so that what is there is always balanced."""
    for seed in map(int, words(options.bases)):
        for name in words(options.models):
            model = models.MODELS[name]
            for plan in [models.BASELINE, *words(options.plans)]:
                yield ((name, outliers.PLAIN, seed, plan, model.base_steps, model.steps),
                       lambda m=model, s=seed, p=plan: program.branch(m, outliers.PLAIN, s, p))


def evaluated(program, options):
    for seed in map(int, words(options.bases)):
        for name in words(options.models):
            model = models.MODELS[name]
            for kind in words(options.kinds):
                for exponent in map(int, words(options.exponents)):
                    condition = outliers.condition_of(kind, exponent)
                    for plan in [models.BASELINE, *words(options.outlier_plans)]:
                        yield ((name, condition, seed, plan, model.base_steps, 0),
                               lambda m=model, c=condition, s=seed, p=plan:
                               program.evaluated_base(m, c, s, p))


def run_all(runs, results, jobs):
    """Runs what is missing. Returns how many failed; their errors are on stderr."""
    def run(key, function):
        try:
            line = function()
        except ProgramError as error:
            print(error, file=sys.stderr, flush=True)
            return 1
        results.add(line)
        loss = sum(line["as_trained"]) / len(line["as_trained"])
        print(f"{' '.join(map(str, key[:4]))}: {loss:.5f}", file=sys.stderr, flush=True)
        return 0

    missing = [(key, function) for key, function in runs if not results.has(key)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(lambda item: run(*item), missing))


def put_into(page, tables):
    """Replaces what is between the two comments of a page."""
    head, found, rest = page.read_text().partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        sys.exit(f"{page} has no '{BEGIN}' followed by '{END}': add them where the tables belong")
    page.write_text(f"{head}{BEGIN}\n\n{tables}\n\n{END}{tail}")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["train", "outliers", "report", "figure", "benefit"])
    parser.add_argument("path", nargs="?", help="the text, the page or the SVG file")
    parser.add_argument("--results", default=ROOT / "docs/quality/results.jsonl")
    parser.add_argument("--program", default=ROOT / "build/bin/fp8train")
    parser.add_argument("--models")
    parser.add_argument("--bases", default="1,2,3")
    parser.add_argument("--plans", default=",".join(models.PLANS))
    parser.add_argument("--outlier-plans", default=OUTLIER_PLANS)
    parser.add_argument("--kinds", default=",".join(outliers.KINDS))
    parser.add_argument("--exponents", default=EXPONENTS, help="of S = 2^k")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default=ROOT / "build/quality",
                        help="folder of runs and checkpoints")
    options = parser.parse_args(arguments)
    if options.action != "report" and options.path is None:
        parser.error(f"{options.action} needs a path")
    default = "llama-512" if options.action == "outliers" else "llama-128"
    options.models = options.models or default
    for name in words(options.models):
        if name not in models.MODELS:
            parser.error(f"unknown model '{name}' (expected {', '.join(models.MODELS)})")
    return options


def main(arguments):
    options = parse(arguments)
    results = Results(options.results)
    if options.action == "report":
        if options.path is None:
            print(report.text(results))
        else:
            put_into(pathlib.Path(options.path), report.text(results))
        return 0
    if options.action == "figure":
        pathlib.Path(options.path).write_text(figure.svg(results))
        return 0
    if options.action == "benefit":
        pathlib.Path(options.path).write_text(benefit.svg(options.program, results))
        return 0
    program = Program(options.program, options.out, options.path)
    make_runs = trained if options.action == "train" else evaluated
    return 1 if run_all(make_runs(program, options), results, options.jobs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
