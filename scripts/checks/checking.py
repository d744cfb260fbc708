"""What the checks of this folder share: a self-test on a small tree, and the command line."""

import sys
import tempfile
from pathlib import Path


def self_test(name, files, expected, check):
    """Writes `files` ({path: text}) into a folder. `check` of it must find a problem at
    each of `expected` ("path:line", once for each problem there), and nothing else.
    Returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        found = sorted(problem.split(": ")[0] for problem in check(Path(folder)))
    if found != sorted(expected):
        print(f"{name} --self-test: expected {sorted(expected)}, found {found}")
        return 1
    print(f"{name} --self-test: {len(expected)} planted problems found")
    return 0


def main(name, files, expected, check):
    """NAME [ROOT]: prints what `check` finds below ROOT, by default this repository. NAME
    --self-test: as above. Returns the exit code."""
    if sys.argv[1:] == ["--self-test"]:
        return self_test(name, files, expected, check)
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    problems = check(root)
    print("\n".join([*problems, f"{name}: {len(problems)} problems"]))
    return 1 if problems else 0
