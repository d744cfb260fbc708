"""Configurations of small runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from .item import ROOT, Workspace


def training_text(work: Workspace) -> Path:
    """The repository's own pages, or what a bundle holds of them."""
    text = work.work / "text.txt"
    if not text.exists():
        pages = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md", ROOT / "LICENSE"]
        text.write_text(
            "\n".join(page.read_text(encoding="utf-8") for page in pages if page.exists()),
            encoding="utf-8",
        )
    return text


def toy_config(work: Workspace, training: Mapping[str, Any], interval: int = 1) -> Path:
    """A run of the toy preset; `training`: further keys of that section."""
    keys = {"max_steps": 50, "micro_batch_size": 8, "seed": 1, **training}
    config = work.work / "run.yaml"
    config.write_text(
        "model: {preset: toy}\n"
        f"data: {{train: [{{path: {training_text(work)}}}], tokenizer: byte, val_fraction: 0.1, "
        f"seq_length: 64}}\n"
        f"training: {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}\n"
        "optimizer: {name: adamw, lr: 1e-3}\n"
        "scheduler: {type: cosine, warmup_steps: 10}\n"
        f"logging: {{interval: {interval}}}\n",
        encoding="utf-8",
    )
    return config
