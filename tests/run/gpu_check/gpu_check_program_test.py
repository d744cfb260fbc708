#!/usr/bin/env python3
"""Every item of scripts/gpu_check.sh that starts fp8train, with the real program and small models:
on the cpu in the place of a GPU, or before the stand-in of CUDA's runtime, whose kernels compute
nothing.

  gpu_check_program_test.py PROGRAM cpu|standin"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

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
            "FP8TRAIN_STANDIN_GPU": "h200",
            "FP8TRAIN_CUDA_ATTENTION": "own",
        }
        command = [
            "bash", SCRIPT, "--program", self.folder, "--out", self.folder / "out",
            "--work", self.folder / "work", "--small",
            "--skip", "kernels,steps,memcheck,racecheck,ranks,peers.*.torch.*", "--budget", "3000",
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
