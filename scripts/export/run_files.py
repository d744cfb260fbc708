"""The files of a run (docs/reference/metrics.md), for the scripts of this folder."""

import json
import sys
from pathlib import Path


def die(text, code=2):
    sys.exit((print(f"error: {text}", file=sys.stderr), code)[1])


def lines_of(path):
    """The objects of metrics.jsonl or tensors.jsonl; the last line may still be being written."""
    if not path.is_file():
        die(f"{path}: no such file; name the folder of a run (its output_dir)", 3)
    with open(path, encoding="utf-8") as file:
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


def by_step(run):
    """One object for each step: its line, and those of its evaluation and its save."""
    steps = {}
    for line in lines_of(Path(run) / "metrics.jsonl"):
        steps.setdefault(line["step"], {}).update(flat(line))
    return [steps[step] for step in sorted(steps)]
