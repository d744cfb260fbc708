"""A folder with fake programs, and runs of scripts/gpu_check.sh before them. The last argument of a
test is the program of sample_tests.cpp."""

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
SAMPLE = Path(sys.argv.pop()).resolve()
FAKES = ["fp8train", "compute-sanitizer", "ncu", "nvidia-smi", "python-with-torch"]


class GpuCheckCase(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.out = self.folder / "out"
        (self.folder / "bin").mkdir()
        for name in FAKES:
            (self.folder / "bin" / name).symlink_to(HERE / "fake_programs.py")
        for name in ("cuda_ops_test", "train_test", "nccl_comm_test"):
            (self.folder / "bin" / name).symlink_to(SAMPLE)

    def command(self, *words):
        return [
            "bash", SCRIPT, "--program", self.folder, "--out", self.out,
            "--work", self.folder / "work", "--python", self.folder / "bin/python-with-torch",
            *words,
        ]

    def environment(self, **extra):
        return {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **extra}

    def check(self, *words, code=0, **extra):
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            env=self.environment(**extra),
            timeout=300,
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def results(self):
        return [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]

    def result(self, item):
        return [result for result in self.results() if result["item"] == item][-1]

    def listed(self, *words):
        return [line.split()[1] for line in self.check("--list", *words).splitlines()]
