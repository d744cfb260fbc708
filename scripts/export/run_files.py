"""The files of a run (docs/reference/metrics.md), for the scripts of this folder."""

import json
import sys
import time
from pathlib import Path


def die(text, code=2):
    sys.exit((print(f"error: {text}", file=sys.stderr), code)[1])


def opened(path, wait):
    while True:
        try:
            return open(path, encoding="utf-8")
        except OSError as error:
            if not wait or not isinstance(error, FileNotFoundError):
                die(
                    f"{path}: {error.strerror.lower()}; name the folder of a run (its output_dir)",
                    3,
                )
        print(f"waiting for {path}", file=sys.stderr)
        time.sleep(wait)


def lines_of(path, wait=0):
    """The objects of metrics.jsonl or tensors.jsonl; the last line may still be being written. A
    file that is not there is looked for again after `wait` seconds; 0: it is an error."""
    with opened(path, wait) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except ValueError:
                die(f"{path}:{number}: not a line of metrics", 3)


def flat(value, name=""):
    """{"fp8_snr_db": {"x": {"mean": 31}}} as {"fp8_snr_db.x.mean": 31}."""
    if not isinstance(value, dict):
        return {name: value}
    result = {}
    for key, part in value.items():
        result.update(flat(part, f"{name}.{key}" if name else key))
    return result


def by_step(run, wait=0):
    """One object for each step: its line, and those of its evaluation and its save.
    `wait` as in lines_of()."""
    steps = {}
    for line in lines_of(Path(run) / "metrics.jsonl", wait):
        steps.setdefault(line["step"], {}).update(flat(line))
    return [steps[step] for step in sorted(steps)]
