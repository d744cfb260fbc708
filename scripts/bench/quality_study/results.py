"""The results file: a JSON line for each run, appended when it is done, so
that a study continues."""

import json
import pathlib
import threading

KEY = ("model", "condition", "base", "plan", "base_steps", "steps")


def key_of(line):
    return tuple(line[name] for name in KEY)


class Results:
    """All lines of a file. add() may be called from several threads."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.lock = threading.Lock()
        text = self.path.read_text() if self.path.exists() else ""
        self.lines = [json.loads(line) for line in text.splitlines() if line.strip()]

    def has(self, key):
        with self.lock:
            return any(key_of(line) == key for line in self.lines)

    def add(self, line):
        with self.lock:
            self.lines.append(line)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def of(self, model, condition):
        """The lines of the newest lengths of runs of a model under a condition."""
        found = [line for line in self.lines
                 if line["model"] == model and line["condition"] == condition]
        lengths = found[-1]["base_steps"], found[-1]["steps"]
        return [line for line in found if (line["base_steps"], line["steps"]) == lengths]

    def studies(self):
        """(model, condition) in the order in which they first appear."""
        return list(dict.fromkeys((line["model"], line["condition"]) for line in self.lines))
