#!/usr/bin/env python3
"""See gpu_check.sh."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Largest relative difference of the loss, cpu to cuda, over 50 steps: sums have another order, and in narrow formats a last bit of a sum
# that is rounded grows over the steps.
CURVE_TOLERANCE = {"fp32": 2e-4, "bf16": 5e-3, "fp16": 3e-3}
CODED_CURVE_TOLERANCE = 2e-2  # of all other rows
CURVE_STEPS = 50
# Name, preset, layers (0: the preset's), sequences, tokens of a sequence.
STEP_SHAPES = [("llama-8b-16l", "llama-8b", 16, 1, 8192), ("llama-1b", "llama-1b", 0, 4, 2048), ("gpt2-124m", "gpt2-124m", 0, 16, 1024)]
# Sequences, tokens, heads, heads of keys and values, elements of a head.
ATTENTION_SHAPES = [(1, 8192, 32, 8, 128), (4, 2048, 32, 8, 64), (16, 1024, 12, 12, 64)]
STEP_ROWS = ["bf16", "te-delayed", "te-current", "te-blockwise", "torchao-rowwise"]
GEMM_SIZES = "1024,2048,4096,8192"


class Check:
    def __init__(self, program, out):
        self.bin, self.out = program / "bin", out
        self.results, self.failures = {}, []
        self.environment = {**os.environ, "LD_LIBRARY_PATH": f"{program / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}

    def run(self, name, command, timeout=240):
        """Exit code, output; the log goes to out/name.log. A time-out is exit code 124."""
        begin = time.perf_counter()
        try:
            done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment, timeout=timeout)
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as expired:
            code, text = 124, (expired.stdout or b"").decode(errors="replace")
        (self.out / f"{name}.log").write_text(text)
        print(f"{name}: exit {code}, {time.perf_counter() - begin:.1f} s", flush=True)
        return code, text

    def expect(self, name, passed, detail):
        self.results[name] = {"passed": bool(passed), **detail}
        if not passed:
            self.failures.append(name)
            print(f"  FAILED: {name} {json.dumps(detail)[:400]}", flush=True)

    def kernels(self):
        code, text = self.run("kernels", [self.bin / "cuda_ops_test"])
        self.expect("kernels", code == 0, {"exit": code, "tail": text.strip().splitlines()[-3:]})
        code, text = self.run("steps", [self.bin / "train_test", "[cuda]"])
        self.expect("steps", code == 0 and "not run" not in text, {"exit": code, "tail": text.strip().splitlines()[-3:]})

    def ranks(self):
        """As many ranks as there are GPUs, at most four: threads of one process. One GPU is a communicator of one rank."""
        code, text = self.run("ranks", [self.bin / "nccl_comm_test"])
        gpus = len(re.findall(r"^GPU ", subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout, re.MULTILINE)) if shutil.which("nvidia-smi") else None
        self.expect("ranks", code == 0 and "not run" not in text, {"exit": code, "gpus": gpus, "tail": text.strip().splitlines()[-3:]})

    def sanitizer(self):
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(tool).exists():
            self.results["compute-sanitizer"] = {"passed": None, "reason": "not installed"}
            return
        code, text = self.run("compute-sanitizer", [tool, "--error-exitcode", "9", self.bin / "cuda_ops_test", "~[slow]"], timeout=120)
        if code not in (0, 9):
            self.results["compute-sanitizer"] = {"passed": None, "reason": f"did not run to its end (exit {code})"}
            return
        self.expect("compute-sanitizer", code == 0, {"exit": code, "tail": text.strip().splitlines()[-3:]})

    def losses(self, row, device, text):
        folder = self.out / f"curve-{row}-{device}"
        shutil.rmtree(folder, ignore_errors=True)
        config = self.out / "curve.yaml"
        config.write_text(
            "model: {preset: toy}\n"
            f"data: {{train: [{{path: {text}}}], tokenizer: byte, val_fraction: 0.1, seq_length: 64}}\n"
            f"training: {{max_steps: {CURVE_STEPS}, micro_batch_size: 8, seed: 1}}\n"
            "optimizer: {name: adamw, lr: 1e-3}\nscheduler: {type: cosine, warmup_steps: 10}\nlogging: {interval: 1}\n")
        code, _ = self.run(f"curve-{row}-{device}", [self.bin / "fp8train", "--config", config, "--set", f"precision.plan={row}", "--set", f"device={device}", "--output-dir", folder])
        metrics = folder / "metrics.jsonl"
        if code != 0 or not metrics.exists():
            return []
        return [entry["loss"] for entry in map(json.loads, metrics.read_text().splitlines()) if "loss" in entry]

    def rows_of_chart(self):
        """The program's own rows, so that a new one is checked without being named here."""
        code, text = self.run("chart", [self.bin / "fp8train", "explain", "--chart"])
        rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
        self.expect("chart", code == 0 and "bf16" in rows, {"rows": rows})
        return rows

    def curves(self):
        text = self.out / "text.txt"
        pages = sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md", ROOT / "LICENSE"]
        text.write_text("\n".join(page.read_text() for page in pages if page.exists()))
        for row in self.rows_of_chart():
            tolerance = CURVE_TOLERANCE.get(row, CODED_CURVE_TOLERANCE)
            cpu, cuda = self.losses(row, "cpu", text), self.losses(row, "cuda", text)
            worst = max((abs(a - b) / abs(b) for a, b in zip(cuda, cpu)), default=float("inf"))
            passed = len(cpu) == len(cuda) == CURVE_STEPS and worst <= tolerance
            self.expect(f"curve {row}", passed, {"worst_relative_difference": worst, "tolerance": tolerance, "cpu": cpu[-1:], "cuda": cuda[-1:]})

    def bench(self, name, arguments):
        code, text = self.run(name, [self.bin / "fp8train", "bench", *arguments, "--device", "cuda", "--json"])
        try:
            result = json.loads(text) if code == 0 else None
        except json.JSONDecodeError:
            result = None
        self.expect(name, result is not None, {"exit": code} if result is None else {})
        return result

    def benches(self):
        figures = {"gemm": self.bench("bench-gemm", ["gemm", "--sizes", GEMM_SIZES]), "cast": self.bench("bench-cast", ["cast"])}
        for batch, length, heads, kv_heads, head_dim in ATTENTION_SHAPES:
            name = f"attention {batch}x{length} {heads}/{kv_heads}x{head_dim}"
            figures[name] = self.bench(
                f"bench-attention-{length}-{head_dim}",
                ["attention", "--batch", batch, "--seq-length", length, "--heads", heads, "--kv-heads", kv_heads, "--head-dim", head_dim, "--seconds", "1"])
        for name, preset, layers, rows, length in STEP_SHAPES:
            for row in STEP_ROWS:
                figures[f"step {name} {row}"] = self.bench(
                    f"bench-step-{name}-{row}",
                    ["step", "--preset", preset, "--plan", row, "--layers", layers, "--micro-batch-size", rows, "--seq-length", length,
                     "--vocabulary", 50257, "--seconds", "3"])
        self.results["bench"] = figures

    def peers(self):
        """PyTorch with torchao on the same GPU; needs a Python with torch and torchao."""
        report = self.out / "peers.json"
        command = [sys.executable, ROOT / "scripts/bench/peers.py", "--device", "cuda", "--models", "llama-8b-16l", "--variants", "bf16-compile,torchao-fp8-compile,torchao-rowwise-compile",
                   "--rows", "bf16,te-delayed,te-current", "--rounds", "1", "--seconds", "8", "--timeout", "300", "--fp8train", self.bin / "fp8train", "--json", report]
        code, text = self.run("peers", command, timeout=900)
        self.expect("peers", code == 0, {"exit": code})
        self.results["bench"]["peers"] = json.loads(report.read_text()) if report.exists() else None
        print(text)

    def table(self):
        lines = ["| check | passed | detail |", "|---|---|---|"]
        for name, result in self.results.items():
            if name != "bench":
                detail = {key: value for key, value in result.items() if key != "passed"}
                lines.append(f"| {name} | {result.get('passed')} | {json.dumps(detail)[:160]} |")
        lines += ["", "| step | tokens/s | TFLOP/s | of own bf16 |", "|---|---|---|---|"]
        figures = self.results.get("bench", {})
        for name, *_ in STEP_SHAPES:
            base = (figures.get(f"step {name} bf16") or {}).get("tokens_per_second")
            for row in STEP_ROWS:
                step = figures.get(f"step {name} {row}")
                if step:
                    ratio = f"{step['tokens_per_second'] / base:.2f}" if base else ""
                    lines.append(f"| {name} {row} | {step['tokens_per_second']:,.0f} | {step['gflops'] / 1e3:.0f} | {ratio} |")
        for name, entry in figures.items():
            if name.startswith("attention") and entry:
                lines.append(f"| {name} | | {entry['forward_gflops'] / 1e3:.0f} forward, {entry['backward_gflops'] / 1e3:.0f} backward | |")
        lines += ["", "| GEMM | TFLOP/s alone | with casts | of bf16 | of the ceiling |", "|---|---|---|---|---|"]
        for entry in (figures.get("gemm") or {}).get("results", []):
            note = " (dequantized)" if "dequantized" in entry else ""
            lines.append(
                f"| {entry['shape']} {entry['operands']}{note} | {entry['gflops'] / 1e3:.0f} | {entry['gflops_with_casts'] / 1e3:.0f} "
                f"| {entry['of_bf16']:.2f} | {entry['share_of_ceiling']:.0%} |")
        cast = figures.get("cast") or {}
        lines += ["", f"| cast, a copy moves {cast.get('copy_gbytes_per_second', 0):,.0f} GB/s | orientations | GB/s | of the copy |", "|---|---|---|---|"]
        for entry in cast.get("results", []):
            lines.append(
                f"| {entry['from']} to {entry['to']}, {entry['scales']} | {entry['orientations']} | {entry['gbytes_per_second']:,.0f} | {entry['share_of_copy']:.0%} |")
        return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-check")
    parser.add_argument("--quick", action="store_true", help="kernels and steps only")
    parser.add_argument("--peers", action="store_true", help="also PyTorch with torchao, where this Python has torch; minutes more")
    arguments = parser.parse_args()
    bundle = ROOT / "build/bundle/fp8train"
    program = (arguments.program or (bundle if bundle.exists() else ROOT / "build")).resolve()
    if not (program / "bin/fp8train").exists():
        sys.exit(f"{program}/bin/fp8train is missing: build first, or give --program")
    arguments.out.mkdir(parents=True, exist_ok=True)
    check = Check(program, arguments.out.resolve())
    code, text = check.run("device", [check.bin / "fp8train", "bench", "gemm", "--device", "cuda", "--sizes", "256", "--seconds", "0.1"])
    if code != 0:
        print(text)
        return 2
    check.kernels()
    if (check.bin / "nccl_comm_test").exists():
        check.ranks()
    else:
        check.results["ranks"] = {"passed": None, "reason": "not built: no NCCL"}
    if not arguments.quick:
        check.curves()
        check.benches()
        check.sanitizer()
    if arguments.peers:
        check.results.setdefault("bench", {})
        check.peers()
    (arguments.out / "gpu_check.json").write_text(json.dumps(check.results, indent=1) + "\n")
    (arguments.out / "gpu_check.md").write_text(check.table())
    print(check.table())
    print(f"{len(check.failures)} failed: {', '.join(check.failures) or 'none'}; everything is in {arguments.out}")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
