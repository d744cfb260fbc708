#!/usr/bin/env python3
"""Every item of scripts/gpu_check.sh that starts fp8train, with the real program and small models:
on the cpu in the place of a GPU, or before the stand-in of CUDA's runtime, whose kernels compute
nothing.

  gpu_check_program_test.py PROGRAM cpu|standin"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parents[2] / "scripts/gpu_check.sh"
DEVICE = sys.argv.pop()
PROGRAM = Path(sys.argv.pop()).resolve()
ON_THE_CPU = """for word; do
  shift
  case $word in cuda) word=cpu ;; device=cuda) word=device=cpu ;; esac
  set -- "$@" "$word"
done"""
FAKES = ["compute-sanitizer", "ncu", "nvidia-smi"]
sys.path.insert(0, str(SCRIPT.parent))
from gpu_check.items import all_items  # noqa: E402
from gpu_check.shapes import LARGE  # noqa: E402


class GpuCheckProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-program-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "bin").mkdir()
        for name in FAKES:
            (self.folder / "bin" / name).symlink_to(HERE / "fake_programs.py")
        program = self.folder / "bin/fp8train"
        lines = [
            "#!/bin/bash",
            "echo 'warning: from the program' >&2",
            ON_THE_CPU if DEVICE == "cpu" else "",
            f'exec {PROGRAM} "$@"',
            "",
        ]
        program.write_text("\n".join(lines), encoding="utf-8")
        program.chmod(0o755)

    def run_check(self):
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "OMP_WAIT_POLICY": "passive",
            "XDG_CACHE_HOME": str(self.folder),
            "FP8TRAIN_STANDIN_GPU": "h100",
            "FP8TRAIN_CUDA_ATTENTION": "own",
        }
        command = [
            "bash", SCRIPT, "--program", self.folder, "--out", self.folder / "out",
            "--work", self.folder / "work", "--small",
            "--skip", "kernels,steps,memcheck,racecheck,ranks,peers.imports,peers.*.torch.*",
            "--budget", "3000",
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=1500
        )
        lines = [
            json.loads(line)
            for line in (self.folder / "out/results.jsonl").read_text().splitlines()
        ]
        return done.stdout + done.stderr, {line["item"]: line for line in lines}

    def test_every_item_is_understood(self):
        said, results = self.run_check()
        options = {name for name, result in results.items() if result["passed"] is None}
        # a program may lack the option
        self.assertLessEqual(options, {"attention.deterministic"}, said)
        for name, result in results.items():
            self.assertTrue(
                [line for line in result["stderr"] if "from the program" in line]
                or name.startswith("profile."),
                name,
            )
            kind = name.split(".")[0]
            if name == "products.right" and DEVICE == "standin":
                continue  # its operands are what no cast has written
            if kind in ("ahead", "curve"):  # what nothing computes does not learn
                self.assertIn(
                    "losses" if kind == "ahead" else "worst_relative_difference",
                    result["detail"],
                    said,
                )
                self.assertIs(result["passed"] or DEVICE == "standin", True, said)
            elif name not in options:
                self.assertIs(result["passed"], True, said)
        table = (self.folder / "out/table.txt").read_text()
        for words in (
            "step  ", "share of a step", "same model, alternately", "attention  ",
            "cast, a copy moves", "mlp.up dgrad", "e5m2 x e4m3", "FP8 e4m3 row",
        ):
            self.assertIn(words, table)

    @unittest.skipUnless(DEVICE == "standin", "the memory of a GPU is described there only")
    def test_memory_that_is_short_costs_a_plan_or_the_ceiling_and_no_figures(self):
        environment = {
            **os.environ, "FP8TRAIN_STANDIN_GPU": "h100", "FP8TRAIN_STANDIN_MEMORY": "70",
            "FP8TRAIN_CACHE_DIR": str(self.folder), "FP8TRAIN_CUDA_ATTENTION": "own",
        }
        done = subprocess.run(
            [
                PROGRAM, "bench", "step", "--preset", "toy", "--micro-batch-size", "64",
                "--plan", "fp32,bf16,te-delayed", "--seconds", "0.01", "--device", "cuda", "--json",
            ],
            capture_output=True, text=True, env=environment, timeout=120,
        )
        self.assertEqual(done.returncode, 4, done.stderr)
        fp32, bf16, fp8 = json.loads(done.stdout)
        self.assertIn("out of GPU memory", fp32["error"])
        for figures in (bf16, fp8):
            self.assertGreater(figures["tokens_per_second"], 0)
            self.assertIn("not measured: out of GPU memory", figures["gemm_ceiling"])
            self.assertLess(figures["memory_bytes"], 70 << 20)

    def planned_gib(self, words):
        """What the program plans for `bench step` with these words, on an H100 of 80 GB."""
        options = dict(zip(words[1::2], words[2::2]))
        config = self.folder / "run.yaml"
        (self.folder / "text.txt").write_text("text")
        config.write_text(
            f"model: {{preset: {options['--preset']}, vocab_size: {options['--vocabulary']}, "
            f"num_hidden_layers: {options['--layers']}}}\n"
            f"data: {{train: [{{path: {self.folder / 'text.txt'}}}], tokenizer: byte, "
            f"seq_length: {options['--seq-length']}}}\n"
            f"training: {{max_steps: 5, micro_batch_size: {options['--micro-batch-size']}}}\n"
            "optimizer: {name: adamw, lr: 1e-4}\n"
        )
        sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        changes = [part for each in sets for part in ("--set", each)]
        done = subprocess.run(
            [
                PROGRAM, "estimate", config, "--gpu", "h100", "--set",
                f"precision.plan={options['--plan']}", *changes,
            ],
            capture_output=True, text=True, timeout=120,
        )
        total = re.search(r"^  total +([\d.]+) GiB", done.stdout, re.MULTILINE)
        self.assertTrue(total, done.stdout + done.stderr)
        return float(total[1])

    def test_the_steps_of_all_items_fit_into_an_h100_of_80_gb(self):
        shapes = LARGE.fitted(81559 / 1024)  # as nvidia-smi says it
        planned = {}
        for item in all_items():
            if item.part:
                words = item.part.command(SimpleNamespace(shapes=shapes), [item.part.plan])
                planned[item.name] = self.planned_gib(without_flags(words))
        print("\n".join(f"{name}: {gib} GiB" for name, gib in planned.items()))
        self.assertGreater(len(planned), 10)
        for name, gib in planned.items():
            self.assertLess(gib, 76, name)
        self.assertGreater(self.planned_gib(without_flags(LARGE.fitted(140).step("bf16", 1))), 79)


def without_flags(words):
    return [word for word in words if word not in ("--quick-weights", "--tune")]


if __name__ == "__main__":
    unittest.main(verbosity=2)
