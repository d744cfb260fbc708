"""Runs a script in an interpreter that has torch: this one, or a throw-away virtual environment."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ["torch", "torchao", "transformers"]


def has_torch():
    return importlib.util.find_spec("torch") is not None


def use_torch(venv):
    """Returns when torch is importable; else makes `venv` if needed, installs into it and starts
    this script again inside it."""
    if has_torch():
        return
    python = Path(venv) / "bin" / "python"
    if os.environ.get("FP8TRAIN_PEERS_VENV") == str(python):
        sys.exit(f"{python} has no torch although it was installed there")
    if not python.exists():
        print(f"making {venv} with {', '.join(PACKAGES)}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        except subprocess.CalledProcessError:
            sys.exit(
                "python3 -m venv failed (Debian: apt-get install python3-venv); or call this "
                "script with a Python that has torch"
            )
    probe = subprocess.run(
        [str(python), "-c", "import torch, torchao, transformers"], capture_output=True
    )
    if probe.returncode != 0:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    os.environ["FP8TRAIN_PEERS_VENV"] = str(python)
    os.execv(str(python), [str(python), *sys.argv])
