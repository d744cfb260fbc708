"""A long run of small steps: how its resident memory grows.

    scripts/soak/memory_of_steps.py PROGRAM [STEPS]

Samples VmRSS while the program trains, evaluates and saves, and fits a line to the second half.
Exit code 1 where it rises by more than 50 KiB in 1,000 steps.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

LIMIT_KIB = 50.0


def resident_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return None


def last_step(metrics):
    """Of the last whole line that has been written since; 0 where there is none."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 65536))
        lines = file.read().split(b"\n")[:-1]
    for line in reversed(lines):
        if line.startswith(b'{"step":'):
            return json.loads(line)["step"]
    return 0


def slope(points):
    """Least squares, KiB per step."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "text.txt")
        text.write_text("the river ran over stones and we slept cold. " * 500)
        words = [
            "model.preset=toy", f"data.train=[{{path: {text}}}]", "data.val_fraction=0.1",
            "data.seq_length=16", f"training.max_steps={steps}", "training.micro_batch_size=1",
            "eval.interval=500", "eval.batches=1", "sample.interval=0", "logging.interval=20",
            "checkpoint.interval=200", "threads=1", "precision.plan=te-delayed",
            "optimizer.lr=1e-4", "output_dir=run",
        ]
        run = subprocess.Popen([program, "train", "--quiet", *words], cwd=folder)
        points = []
        while run.poll() is None:
            time.sleep(0.1)
            try:
                resident = resident_kib(run.pid)
            except FileNotFoundError:
                break
            if resident is not None:
                points.append((last_step(pathlib.Path(folder, "run", "metrics.jsonl")), resident))
        if run.wait() != 0:
            print(f"the run ended with {run.returncode}")
            return 1
    late = [(step, resident) for step, resident in points if step >= steps // 2]
    if len(late) < 20:
        print(f"{len(late)} samples are too few: more steps are needed")
        return 1
    rise = slope(late) * 1000
    print(
        f"{steps} steps, {len(late)} samples in the second half: resident memory {late[0][1]} to "
        f"{late[-1][1]} KiB, "
        f"{rise:.1f} KiB in 1,000 steps"
    )
    return 0 if rise <= LIMIT_KIB else 1


if __name__ == "__main__":
    sys.exit(main())
