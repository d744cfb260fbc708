#!/usr/bin/env python3
"""A run's metrics to Weights & Biases, once or while it runs.

    scripts/export/to_wandb.py RUN --project NAME [--name NAME] [--entity NAME] [--offline]
        [--follow]

RUN is the folder of a run (its output_dir). Called again it continues the same run there: what
was sent is not sent again. Needs the package wandb (pip install wandb) and, without --offline,
`wandb login`. --follow looks for new lines every 10 seconds, until summary.json is there; the
run need not have begun."""

import argparse
import hashlib
import json
import time
from pathlib import Path

from run_files import by_step, die

SECONDS_BETWEEN = 10


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def send_new(session, root, sent, wait):
    """Sends the steps above `sent` that are complete; returns the last step that was sent."""
    steps = by_step(root, wait)
    # Of a run that was continued the summary is that of its earlier end.
    last = max((values["step"] for values in steps), default=0)
    ended = read_json(root / "summary.json").get("steps", -1) >= last
    for values in steps if ended else steps[:-1]:  # lines of the last step may follow
        step = values.pop("step")
        if step > sent:
            session.log(
                {key: value for key, value in values.items() if value is not None}, step=step
            )
            sent = step
    return sent, ended


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--project", required=True)
    parser.add_argument("--name", help="default: the folder's name")
    parser.add_argument("--entity")
    parser.add_argument(
        "--offline", action="store_true", help="into the folder wandb, for `wandb sync`"
    )
    parser.add_argument("--follow", action="store_true", help="until the run has ended")
    options = parser.parse_args()
    try:
        import wandb
    except ImportError:
        die("this needs the package wandb: pip install wandb")
    root = Path(options.run)
    wait = SECONDS_BETWEEN if options.follow else 0
    # an error here is better than a run without content there; nor are the other files there before
    by_step(root, wait)
    configuration = {"environment": read_json(root / "env.json")}
    resolved = root / "config.resolved.yaml"
    if resolved.is_file():
        configuration["config.resolved.yaml"] = resolved.read_text(encoding="utf-8")
    identity = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    session = wandb.init(
        project=options.project,
        entity=options.entity,
        name=options.name or root.resolve().name,
        id=identity,
        resume="allow",
        config=configuration,
        mode="offline" if options.offline else "online",
    )
    sent, ended = send_new(session, root, session.step - 1, wait)
    while options.follow and not ended:
        time.sleep(SECONDS_BETWEEN)
        sent, ended = send_new(session, root, sent, wait)
    for key, value in read_json(root / "summary.json").items():
        session.summary[key] = value
    session.finish()
    print(f"sent up to step {sent}")


if __name__ == "__main__":
    main()
