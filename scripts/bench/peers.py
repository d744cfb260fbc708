#!/usr/bin/env python3
"""The same training step in PyTorch and in fp8train, on this machine, in one run.

    scripts/bench/peers.py [--models nanogpt-laptop,gpt2-124m,llama-42m] [--threads N] [--rounds 2]
        [--seconds 15] [--json FILE]
    scripts/bench/peers.py --device cuda --models llama-8b-8l
        --variants bf16-compile,torchao-fp8-compile,bf16-compile-fsdp

For each model every PyTorch variant (fp32, bf16 autocast eager and compiled, torchao float8
tensorwise emulated, eager and compiled) and every plan of fp8train (fp32, bf16, te-delayed,
te-current) is measured in a process of its own, PyTorch and fp8train alternately, with the same
number of threads. A step is forward, backward, gradient clipping at 1.0 and AdamW (fused) on random
tokens. On a GPU the loss is compiled too, attention runs on the faster of PyTorch's two fused
backends, and "-fsdp" after a variant's name shards the model over a world of one, as torchtitan
does. A measurement is the median step after warm-up; the table shows the median over the rounds.
Compare figures of one run only: machines differ, and others may be using them.

Uses the Python that runs it where torch is importable there, else a virtual environment (--venv,
build/peers-venv) made for it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from venv_support import has_torch, use_torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["nanogpt-laptop", "gpt2-124m", "llama-42m"]  # measured where --models is not given
VARIANTS = ["fp32", "bf16", "bf16-compile", "torchao-fp8", "torchao-fp8-compile"]
WIDE = {f"llama-8b-{layers}l": layers for layers in (2, 4, 8, 16)}
KNOWN_MODELS = [*MODELS, *WIDE]
COMPILED = ["bf16-compile", "torchao-fp8-compile", "torchao-rowwise-compile"]
KNOWN_VARIANTS = [*VARIANTS, COMPILED[-1], *(f"{variant}-fsdp" for variant in COMPILED)]
# Any other model is the preset of its name.
OWN_SHAPE = {
    name: ["--preset", "llama-8b", "--layers", str(layers)] for name, layers in WIDE.items()
}
PLANS = ["fp32", "bf16", "te-delayed", "te-current"]


def measure_torch(model_name, variant, device, threads, seconds):
    """In a process of its own: prints one JSON object."""
    import torch
    from torch_models import MODELS as shapes, adamw, build, build_cuda, choose_fastest_sdpa

    torch.set_num_threads(threads)
    shape, (rows, length) = shapes[model_name]
    attention = choose_fastest_sdpa(shape, rows, length) if device == "cuda" else None
    model, runner, autocast = (build_cuda if device == "cuda" else build)(shape, variant)
    optimizer = adamw(model, 1e-3, (0.9, 0.95), 0.1)
    generator = torch.Generator().manual_seed(0)

    def step():
        tokens = torch.randint(shape.vocab, (rows, length + 1), generator=generator).to(device)
        start = time.perf_counter()
        with autocast():
            loss = runner(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        return time.perf_counter() - start, value

    for _ in range(3):
        step()
    times, loss, begin = [], 0.0, time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        elapsed, loss = step()
        times.append(elapsed)
    median = statistics.median(times)
    peak = torch.cuda.max_memory_reserved() if device == "cuda" else None
    print(
        json.dumps({
            "tokens_per_second": rows * length / median,
            "step_seconds": median,
            "steps": len(times),
            "loss": loss,
            "layers": shape.layers,
            "parameters": sum(p.numel() for p in model.parameters()),
            "memory_bytes": peak,
            "attention": attention,
            "torch": torch.__version__,
        })
    )


def run_json(command, threads, timeout):
    """The last line (or the whole output) as JSON; else the reason why not."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=environment, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {timeout} s"}
    except OSError as error:
        return {"error": str(error)}
    for text in (done.stdout, done.stdout.strip().split("\n")[-1]):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            continue
    return {"error": f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"}


def torch_command(model, variant, arguments):
    return [
        sys.executable, __file__, "--worker", model, variant, "--device", arguments.device,
        "--threads", str(arguments.threads), "--seconds", str(arguments.seconds),
    ]


def own_command(model, plan, arguments):
    from torch_models import MODELS as shapes

    shape, (rows, length) = shapes[model]
    command = [
        str(arguments.fp8train), "bench", "step", *OWN_SHAPE.get(model, ["--preset", model]),
        "--micro-batch-size", str(rows), "--seq-length", str(length),
        "--vocabulary", str(shape.vocab), "--plan", plan, "--threads", str(arguments.threads),
        "--seconds", str(arguments.seconds), "--device", arguments.device, "--json",
    ]
    if arguments.device == "cuda":
        command += ["--tune", "--quick-weights"]
    return command + arguments.own_arguments.split()


def interleave(first, second):
    """a0 b0 a1 b1 ..., then the rest of the longer."""
    mixed = []
    for i in range(max(len(first), len(second))):
        mixed += first[i:i + 1] + second[i:i + 1]
    return mixed


def measure(model, arguments):
    peers = [("torch", v) for v in arguments.variants.split(",") if v]
    own = [("fp8train", plan) for plan in arguments.plans.split(",") if plan]
    results = {}
    for round_number in range(arguments.rounds):
        for side, name in interleave(peers, own):
            earlier = results.setdefault(f"{side} {name}", {"rates": [], "runs": []})
            if "error" in earlier:
                continue
            command = (
                torch_command(model, name, arguments)
                if side == "torch"
                else own_command(model, name, arguments)
            )
            result = run_json(command, arguments.threads, arguments.timeout)
            rate = result.get("tokens_per_second")
            if rate is None:
                earlier["error"] = result.get("error", "no tokens_per_second in the output")
            else:
                earlier["rates"].append(rate)
                earlier["runs"].append(result)
            shown = f"{rate:,.0f} tokens/s" if rate is not None else earlier["error"]
            print(
                f"{model}, round {round_number + 1}, {side} {name}: {shown}",
                file=sys.stderr,
                flush=True,
            )
    for entry in results.values():
        if entry["rates"]:
            entry["tokens_per_second"] = statistics.median(entry["rates"])
    return results


def rate_of(results, key):
    return results.get(key, {}).get("tokens_per_second")


def best_of(results, keys):
    return max((rate for rate in (rate_of(results, key) for key in keys) if rate), default=None)


def table(model, results):
    """Markdown: tokens/s and the ratios that the goals are written in."""
    bf16 = best_of(results, [key for key in results if key.startswith("torch bf16")])
    float8 = best_of(results, [key for key in results if key.startswith("torch torchao")])
    own_bf16 = rate_of(results, "fp8train bf16")
    lines = [
        f"### {model}",
        "",
        "| | tokens/s | of PyTorch's best bf16 | of torchao's best float8 | of own bf16 | of the "
        "GEMM ceiling |",
        "|---|---|---|---|---|---|",
    ]

    def ratio(rate, base):
        return f"{rate / base:.2f}" if rate and base else "-"

    for key, entry in results.items():
        rate = entry.get("tokens_per_second")
        own = key.startswith("fp8train")
        fractions = [
            run["fraction_of_ceiling"] for run in entry["runs"] if run.get("fraction_of_ceiling")
        ]
        lines.append(
            f"| {key} | {f'{rate:,.0f}' if rate else 'failed'} | {ratio(rate, bf16)} | "
            f"{ratio(rate, float8)} | "
            f"{ratio(rate, own_bf16) if own else ''} | "
            f"{f'{statistics.median(fractions):.0%}' if fractions else ''} |"
        )
    lines += [""] + [
        f"{key}: {entry['error']}" for key, entry in results.items() if "error" in entry
    ]
    return "\n".join(lines)


def cpu_name():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def environment(arguments):
    import torch

    facts = {"cpu": cpu_name(), "threads": arguments.threads, "torch": torch.__version__}
    if arguments.device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    else:
        facts["torch_cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    try:
        from importlib.metadata import version
        facts["torchao"] = version("torchao")
    except Exception:  # not installed: the float8 variants will say so
        pass
    return facts


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--variants", default=",".join(VARIANTS), help="of PyTorch; empty: none")
    parser.add_argument("--plans", default=",".join(PLANS), help="of fp8train; empty: none")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="of measuring, per variant and round"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        help="seconds for one measurement, compiling included",
    )
    parser.add_argument("--fp8train", type=Path, default=ROOT / "build/bin/fp8train")
    parser.add_argument(
        "--own-arguments", default="", help="further arguments for `fp8train bench step`"
    )
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--venv", type=Path, default=ROOT / "build/peers-venv")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = set(filter(None, arguments.models.split(","))) - set(KNOWN_MODELS)
    if unknown:
        parser.error(
            f"unknown models: {', '.join(sorted(unknown))}; there are {', '.join(KNOWN_MODELS)}"
        )
    unknown = set(filter(None, arguments.variants.split(","))) - set(KNOWN_VARIANTS)
    if unknown:
        parser.error(
            f"unknown variants: {', '.join(sorted(unknown))}; there are {', '.join(KNOWN_VARIANTS)}"
        )
    return arguments


def main():
    arguments = parse_arguments()
    if arguments.worker and not has_torch():
        sys.exit("No module named 'torch'")
    use_torch(arguments.venv)
    if arguments.worker:
        measure_torch(*arguments.worker, arguments.device, arguments.threads, arguments.seconds)
        return 0
    report = {"environment": environment(arguments), "models": {}}
    print(", ".join(f"{key} {value}" for key, value in report["environment"].items()), "\n")
    for model in filter(None, arguments.models.split(",")):
        report["models"][model] = measure(model, arguments)
        print(table(model, report["models"][model]), "\n", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    failed = [
        key
        for results in report["models"].values()
        for key, entry in results.items()
        if "error" in entry
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
