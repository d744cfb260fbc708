#!/usr/bin/env python3
"""In the place of fp8train, of NVIDIA's tools and of a Python with torch when scripts/gpu_check.sh
is tested: what they are called by decides. Every program also writes to standard error, as real
ones do.

Environment: GPU_CHECK_FAKE names what goes wrong: "no-gpu", "no-products", "libraries", "garbage",
"diverges", "no-options", "no-torch", "torch-memory", "memcheck", "own-attention", "refused",
"wrong-products", "step-memory", "step-error", "step-crash", "step-hang", "step-order".
GPU_CHECK_GPU is its name and memory: "NVIDIA H200,143771 MiB". GPU_CHECK_SAMPLES is a file to which
nvidia-smi adds a character with each sample of clocks; a training run waits for three."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WRONG = os.environ.get("GPU_CHECK_FAKE", "")
SAMPLES = os.environ.get("GPU_CHECK_SAMPLES", "")
GPU, MEMORY = os.environ.get("GPU_CHECK_GPU", "NVIDIA H100 80GB HBM3,81559 MiB").split(",")
PLANS = {
    "bf16": 1.0, "te-delayed": 1.4, "te-current": 1.3, "te-blockwise": 1.2, "deepseek-v3": 1.1,
    "torchao-rowwise": 1.25, "fp32": 0.2, "fp8-fast": 1.5,
}


def after(words, option, default=""):
    return words[words.index(option) + 1] if option in words else default


def step(plan):
    rate = 20000.0 * PLANS[plan]
    return {
        "bench": "step",
        "plan": plan,
        "attention": "cuDNN 9.19",
        "seconds_per_step": 8192 / rate,
        "tokens_per_second": rate,
        "gflops": 5e5,
        "memory_bytes": 9e10,
        "time_shares": {"gemm": 0.7, "attention_forward": 0.3},
    }


def steps(words):
    """Prints each plan's figures as soon as they are there; goes wrong at te-delayed."""
    plans = after(words, "--plan").split(",")
    code = 0
    if WRONG == "step-order":
        plans.reverse()
    for number, plan in enumerate(plans):
        figures = step(plan)
        if plan == "te-delayed" and WRONG in ("step-memory", "step-error"):
            said = {"step-memory": "out of GPU memory: asked for 9 bytes",
                    "step-error": "waiting for the GPU: an illegal memory access"}[WRONG]
            figures, code = {"bench": "step", "plan": plan, "error": said}, 4
        if plan == "te-delayed" and WRONG == "step-crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if plan == "te-delayed" and WRONG == "step-hang":
            time.sleep(1000)
        before = "" if len(plans) == 1 else "[\n" if number == 0 else ",\n"
        print(before + json.dumps(figures, indent=1), end="", flush=True)
    print("" if len(plans) == 1 else "\n]")
    return code


def verified_products():
    results = [
        {
            "layer": "mlp.up", "product": product, "shape": "8192x28672x4096",
            "operands": "e4m3 x e4m3", "result": "bf16", "error": 1.7e-3, "bound": 3e-3,
        }
        for product in ("fprop", "dgrad", "wgrad")
    ]
    wrong = 0
    if WRONG == "wrong-products":
        results[1]["error"] = 0.4
        results[2] = {**results[2], "refused": "cuBLASLt has no such product"}
        del results[2]["error"]
        wrong = 2
    print(json.dumps({"bench": "products", "wrong": wrong, "results": results}, indent=1))
    return 1 if wrong else 0


def products(words):
    results = []
    for operands in ("bf16", "e4m3 row x e4m3 row", "e4m3 1x32 x e4m3 1x32"):
        entry = {
            "layer": "mlp.up", "product": "fprop", "shape": "8192x28672x4096", "operands": operands,
            "result": "bf16", "fast_accumulate": False,
        }
        is_refused = "1x32" in operands or (WRONG == "refused" and "row" in operands)
        results.append({
            **entry, **({"dequantized": "this GPU has none"} if is_refused else {"gflops": 7e5})
        })
    return {"bench": "products", "results": results}


def gemm():
    log = os.environ.get("CUBLASLT_LOG_FILE")
    if log and WRONG == "refused":
        Path(log).write_text(
            "[2026][cublasLt][1][Api][cublasLtMatmul] m=132\n"
            "[2026][cublasLt][1][Info][cublasLtMatmul] Unsupported M dimension for FP8: 132\n"
        )
    return {
        "results": [
            {"shape": "256x256x256", "operands": "bf16"},
            {"operands": "e4m3 delayed"},
            {"operands": "e4m3 1x32", "dequantized": "this GPU has none"},
        ]
    }


def bench(words):
    """What `fp8train bench --json` prints, and its exit code."""
    if WRONG in ("no-gpu", "no-products") or (
        WRONG == "libraries" and "fake-wheels" not in os.environ.get("LD_LIBRARY_PATH", "")
    ):
        print("error: cuda: libcublasLt.so.13 is not found", file=sys.stderr)
        return 4
    if WRONG == "no-options" and "--deterministic" in words:
        print(
            "error: unknown option --deterministic; `fp8train bench step --help` lists what it "
            "takes",
            file=sys.stderr,
        )
        return 2
    if WRONG == "garbage" and words[0] == "cast":
        print('{"bench": "cast", "results": [')
        return 0
    if words[0] == "step":
        return steps(words)
    if "--verify" in words:
        return verified_products()
    rate = {"forward_gflops": 5e5, "backward_gflops": 4e5, "kernels": "cuDNN 9.19"}
    cast = {
        "from": "bf16", "to": "e4m3", "scales": "delayed", "orientations": 2,
        "gbytes_per_second": 3000.0, "share_of_copy": 0.75,
    }
    answers = {
        "gemm": gemm,
        "products": lambda: products(words),
        "attention": lambda: rate,
        "cast": lambda: {"copy_gbytes_per_second": 4000.0, "results": [cast]},
    }
    print(json.dumps(answers[words[0]](), indent=1))
    return 0


def wait_for_samples(count):
    """Of nvidia-smi, which starts by itself and may be late on a busy machine."""
    def written():
        return os.path.getsize(SAMPLES) if os.path.exists(SAMPLES) else 0
    begin, end = written(), time.monotonic() + 60
    while written() < begin + count and time.monotonic() < end:
        time.sleep(0.05)


def train(words):
    if SAMPLES:
        wait_for_samples(3)
    folder = Path(after(words, "--output-dir"))
    folder.mkdir(parents=True)
    settings = [word for word in words if "=" in word]
    spoilt = WRONG == "diverges" and "device=cuda" in settings
    losses = [5.5 - 0.03 * i + (0.5 if spoilt and i > 20 else 0.0) for i in range(50)]
    if "interval: 50" in Path(after(words, "--config")).read_text(encoding="utf-8"):
        losses = losses[::40]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, "loss": loss}) + "\n" for i, loss in enumerate(losses)),
        encoding="utf-8",
    )
    return 0


def fp8train(words):
    if words[0] == "--version":
        if len(words) > 1:
            return 2
        print("fp8train 0.1.0")
        return 0
    if words[0] == "check":
        own = "own kernels (built without the headers of cudnn-frontend)"
        kernels = own if WRONG == "own-attention" else "cuDNN 9.19 in bf16 and fp16"
        print(f"device  cuda: {GPU} (device: cuda), 16 threads\n        attention: {kernels}")
        return 0
    return bench(words[1:]) if words[0] == "bench" else train(words)


def compute_sanitizer(words):
    print("========= COMPUTE-SANITIZER")
    program = next(i for i, word in enumerate(words) if word.startswith("/"))
    code = subprocess.run(words[program:], check=False).returncode
    errors = 1 if WRONG == "memcheck" and "memcheck" in words else 0
    if errors:
        print(
            "========= Invalid __global__ write of size 4 bytes\n"
            "=========     at norm_backward+0x100 in norm.cu:12"
        )
    if "racecheck" in words:
        print("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
    else:
        print(f"========= ERROR SUMMARY: {errors} errors")
    return 9 if errors else code


def ncu(words):
    print("==PROF== Connected to process 1")
    names = ["ID", "Kernel Name", *after(words, "--metrics").split(",")]
    rows = [
        names,
        ["", "", "ns", "byte", "inst", "%"],
        ["0", "void swiglu(int, float)", "2,000", "8,000,000", "5000", "60.0"],
        ["1", "void swiglu(int, float)", "2000", "8000000", "5000", "40.0"],
        ["2", "norm", "1000", "1000", "100", "50"],
    ]
    for row in rows:
        print(",".join(f'"{role}"' for role in row))
    return 0


def nvidia_smi(words):
    if WRONG == "no-gpu":
        return 9
    query = next(
        (word.split("=", 1)[1].split(",") for word in words if word.startswith("--query-gpu=")),
        None,
    )
    if query is None:
        print("==============NVSMI LOG==============")
        return 0
    answers = {
        "name": GPU,
        "memory.total": MEMORY,
        "compute_cap": "9.0",
        "driver_version": "580.1",
        "clocks.sm": "1980",
        "clocks.mem": "3201",
        "power.draw": "650.5",
        "temperature.gpu": "60",
        "clocks_event_reasons.active": "0x0000000000000004",
    }
    print(", ".join(answers.get(field, "1") for field in query), flush=True)
    while "-lms" in words:  # until nobody listens
        os.write(1, (", ".join(answers[field] for field in query) + "\n").encode())
        if SAMPLES:
            with open(SAMPLES, "a", encoding="utf-8") as samples:
                samples.write(".")
        subprocess.run(["sleep", "0.1"], check=False)
    return 0


def python(words):
    if WRONG == "no-torch":
        print("ModuleNotFoundError: No module named 'torch'", file=sys.stderr)
        return 1
    if WRONG == "torch-memory":
        print("torch.OutOfMemoryError: CUDA out of memory.", file=sys.stderr)
        return 1
    print(
        "autotuning\n"
        + json.dumps({
            "tokens_per_second": 19000.0,
            "step_seconds": 0.43,
            "loss": 11.0,
            "attention": "flash",
            "model": after(words, "--worker"),
            "packages": os.environ["PYTHONPATH"],
        })
    )
    return 0


def main():
    program = Path(sys.argv[0]).name
    print(f"warning: {program} warns", file=sys.stderr)
    print(f"LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH', '')}", file=sys.stderr)
    kinds = {
        "fp8train": fp8train, "compute-sanitizer": compute_sanitizer, "ncu": ncu,
        "nvidia-smi": nvidia_smi, "python-with-torch": python,
    }
    return kinds[program](sys.argv[1:])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os._exit(0)
