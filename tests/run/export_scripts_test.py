#!/usr/bin/env python3
"""scripts/export on a run with two evaluations: the CSV, and what the package wandb is called with
(a stand-in, which notes it).

    tests/run/export_scripts_test.py PROGRAM"""

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = Path(sys.argv.pop()).resolve()
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "export"
STAND_IN = """
import json, os
class Session:
    step = int(os.environ.get("SENT", 0))
    summary = {}
    def log(self, values, step): self.note({"step": step, **values})
    def finish(self): self.note({"summary": self.summary})
    def note(self, what):
        with open(os.environ["NOTES"], "a") as file: file.write(json.dumps(what) + "\\n")
def init(**given):
    session = Session()
    session.note({"init": given})
    return session
"""


class ExportScripts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        (cls.folder / "text.txt").write_text("the river ran over stones and we slept\n" * 300)
        subprocess.run(
            [
                PROGRAM, "device=cpu", "model.preset=toy", "data.train=text.txt",
                "data.seq_length=32", "data.val_fraction=0.2", "precision.plan=te-delayed",
                "training.micro_batch_size=1", "training.max_steps=8", "logging.interval=2",
                "logging.tensor_interval=4", "eval.interval=4", "eval.batches=1", "output_dir=run",
                "threads=1", "-q",
            ],
            cwd=cls.folder,
            check=True,
        )

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def script(self, name, *arguments, **environment):
        return subprocess.run(
            [sys.executable, SCRIPTS / name, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / "run" / name).read_text().splitlines()]

    def test_csv_has_a_row_for_each_step(self):
        rows = list(csv.DictReader(self.script("to_csv.py", "run").stdout.splitlines()))
        losses = {
            line["step"]: line["loss"] for line in self.lines("metrics.jsonl") if "loss" in line
        }
        self.assertEqual({int(row["step"]): float(row["loss"]) for row in rows}, losses)
        self.assertEqual([row["step"] for row in rows if row["val_loss"]], ["4", "8"])
        self.assertTrue(all(float(row["fp8_snr_db.x.mean"]) > 10 for row in rows))

    def test_csv_of_tensors(self):
        self.assertEqual(
            self.script("to_csv.py", "run", "--tensors", "--out", "t.csv").returncode, 0
        )
        with open(self.folder / "t.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        wanted = [
            (line["step"], tensor) for line in self.lines("tensors.jsonl") for tensor in line["fp8"]
        ]
        self.assertEqual([(int(row["step"]), row["tensor"]) for row in rows], wanted)

    def test_wandb_gets_each_step_once(self):
        package = self.folder / "package"
        package.mkdir(exist_ok=True)
        (package / "wandb.py").write_text(STAND_IN)
        for sent, steps in ((0, [2, 4, 6, 8]), (5, [6, 8])):
            notes = self.folder / f"notes{sent}"
            done = self.script(
                "to_wandb.py",
                "run",
                "--project",
                "p",
                PYTHONPATH=str(package),
                NOTES=str(notes),
                SENT=str(sent),
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            said = [json.loads(line) for line in notes.read_text().splitlines()]
            self.assertEqual(said[0]["init"]["project"], "p")
            self.assertIn("max_steps: 8", said[0]["init"]["config"]["config.resolved.yaml"])
            self.assertEqual([one["step"] for one in said[1:-1]], steps)
            self.assertEqual(said[-1]["summary"]["steps"], 8)

    def test_a_run_that_is_continued_has_not_ended(self):
        package = self.folder / "package"
        package.mkdir(exist_ok=True)
        (package / "wandb.py").write_text(STAND_IN)
        run = self.folder / "continued"
        shutil.copytree(self.folder / "run", run)
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps({**summary, "steps": 4}))
        notes = self.folder / "notes_continued"
        done = self.script(
            "to_wandb.py", "continued", "--project", "p", PYTHONPATH=str(package), NOTES=str(notes)
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [json.loads(line) for line in notes.read_text().splitlines()]
        # lines of step 8 may follow
        self.assertEqual([one["step"] for one in said[1:-1]], [2, 4, 6])

    def test_a_run_that_has_not_begun_is_waited_for(self):
        package = self.folder / "package"
        package.mkdir(exist_ok=True)
        (package / "wandb.py").write_text(STAND_IN)
        notes = self.folder / "notes_later"
        patient = "import sys, to_wandb; to_wandb.SECONDS_BETWEEN = 0.05; to_wandb.main()"
        follower = subprocess.Popen(
            [sys.executable, "-c", patient, "later", "--project", "p", "--follow"],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{SCRIPTS}:{package}", "NOTES": str(notes)},
        )
        self.assertIn("waiting for later/metrics.jsonl", follower.stderr.readline())
        # what a run that begins writes appears at once here
        shutil.copytree(self.folder / "run", self.folder / "partly")
        (self.folder / "partly").rename(self.folder / "later")
        errors = follower.communicate(timeout=60)[1]
        self.assertEqual(follower.returncode, 0, errors)
        said = [json.loads(line) for line in notes.read_text().splitlines()]
        self.assertIn("max_steps: 8", said[0]["init"]["config"]["config.resolved.yaml"])
        self.assertEqual([one["step"] for one in said[1:-1]], [2, 4, 6, 8])

    def test_errors_say_what_is_missing(self):
        done = self.script("to_csv.py", "none")
        self.assertEqual(done.returncode, 3)
        self.assertIn("none/metrics.jsonl: no such file", done.stderr)
        done = subprocess.run(
            [sys.executable, "-S", SCRIPTS / "to_wandb.py", "run", "--project", "p"],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("pip install wandb", done.stderr)


if __name__ == "__main__":
    unittest.main()
