"""Runs of the program: training, evaluation, and the checkpoints that they leave."""

import json
import pathlib
import platform
import shutil
import subprocess
import threading
import time

from quality_study import models, outliers

VALIDATION_FRACTION = 0.1


class ProgramError(Exception):
    """The program ended with an error; the text is what it said."""


def split_text(text, folder):
    """Writes the first nine tenths of the text and the rest as files of their own."""
    content = pathlib.Path(text).read_bytes()
    cut = round(len(content) * (1 - VALIDATION_FRACTION))
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train.txt", content[:cut]), ("validation.txt", content[cut:])):
        if not (folder / name).exists() or (folder / name).read_bytes() != part:
            (folder / name).write_bytes(part)


def commit_of(folder):
    """The commit of the sources, and whether the program was built from more than that."""
    def git(*words):
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True,
                              check=False).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/lib", ":/apps")
    commit = git("log", "-1", "--format=%h", "--", ":/lib", ":/apps")
    return commit + ("-changed" if changed else "")


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
                platform.processor())


class Program:
    """The binary, the folder of its runs and the texts that they read."""

    def __init__(self, binary, folder, text):
        self.binary = str(pathlib.Path(binary).resolve())
        self.folder = pathlib.Path(folder).resolve()
        split_text(text, self.folder)
        self.lock = threading.Lock()  # of bases and texts, which several runs read
        self.facts = {"commit": commit_of(pathlib.Path(__file__).parent), "processor": processor()}

    def call(self, words):
        result = subprocess.run([self.binary, *words], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise ProgramError(f"{' '.join(words)}: exit code {result.returncode}: "
                               f"{result.stderr.strip()[-600:]}")
        return result.stdout

    def train(self, settings):
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.call(["train", "--quiet", *words])

    def checkpoints(self, folder):
        return sorted((folder / "checkpoints").glob("step-[0-9]*[0-9]"))

    def base(self, model, seed):
        """The checkpoint that the branches of a seed start from; trained where it is missing."""
        folder = self.folder / f"{model.name}-{model.base_steps}-base-{seed}"
        checkpoint = folder / "checkpoints" / f"step-{model.base_steps:06}"
        if not (checkpoint / "MANIFEST.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            self.train(models.base_settings(model, self.folder / "train.txt", seed, folder))
        return checkpoint

    def loss(self, checkpoint, plan, tokens):
        """Of the beginning of the held-out text, in nats per character."""
        text = self.folder / f"validation-{tokens}.txt"
        with self.lock:
            if not text.exists():
                text.write_bytes((self.folder / "validation.txt").read_bytes()[:tokens])
        answer = self.call(["eval", "--checkpoint", str(checkpoint), "--plan", plan, "--data",
                            str(text), "--threads", "1", "--device", "cpu", "--json"])
        return json.loads(answer)["loss"]

    def evaluate(self, checkpoints, plan, tokens):
        """Losses as trained, and in bf16; one list where that is the same."""
        own = models.branch_of(plan).evaluation_plan
        # COAT's modules are plain ones when they do not train.
        in_bf16 = [self.loss(checkpoint, models.BASELINE, tokens) for checkpoint in checkpoints]
        as_trained = in_bf16 if own in (models.BASELINE, "coat") else [
            self.loss(checkpoint, own, tokens) for checkpoint in checkpoints]
        return {"as_trained": as_trained, "in_bf16": in_bf16, "eval_tokens": tokens}

    def branch(self, model, condition, seed, plan):
        """Trains a branch under a plan and returns its line of results. Its folder is removed."""
        folder = self.folder / f"{model.name}-{model.steps}-{condition}-{seed}-{plan}"
        shutil.rmtree(folder, ignore_errors=True)
        start = self.changed_base(model, condition, seed)
        began = time.monotonic()
        self.train(models.branch_settings(model, self.folder / "train.txt", seed, folder, plan,
                                          start))
        trained = time.monotonic()
        checkpoints = self.checkpoints(folder)[-models.EVALUATIONS:]
        line = self.line(model, condition, seed, plan, model.steps)
        line |= self.evaluate(checkpoints, plan, model.eval_tokens)
        line["seconds"] = [round(trained - began, 1), round(time.monotonic() - trained, 1)]
        shutil.rmtree(folder)
        return line

    def evaluated_base(self, model, condition, seed, plan):
        """The line of a base that is evaluated under a plan and not trained on."""
        checkpoint = self.changed_base(model, condition, seed)
        line = self.line(model, condition, seed, plan, 0)
        return line | self.evaluate([checkpoint], plan, model.outlier_tokens)

    def changed_base(self, model, condition, seed):
        with self.lock:
            return outliers.with_outliers(self.base(model, seed), condition)

    def line(self, model, condition, seed, plan, steps):
        return {"model": model.name, "condition": condition, "base": seed, "plan": plan,
                "base_steps": model.base_steps, "steps": steps,
                "tokens_per_step": model.micro_batch * models.SEQUENCE, **self.facts}
