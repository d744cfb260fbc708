"""All items, in the order in which they run: by value, so that a budget cuts what matters
least."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Sequence

from .item import Item
from .kernels import kernel_items, sanitizer_items
from .peers import peer_items, sharded_items
from .runs import ahead_items, curve_items
from .speed import speed_items

GROUPS = {
    1: "device, kernels and whole steps against the cpu",
    2: "rates of casts, products, attention, steps and kernels",
    3: "PyTorch and fp8train alternately, losses against the cpu",
}

# Patterns of names. First whether the GPU computes what is meant: conversions of the chip, which
# nothing else can test, then cuBLASLt, then whole steps. Then the first figures; what calibrates
# them; the rest of correctness; the peers; and last what costs most for what it tells.
ORDER = [
    "probe", "kernels.codes", "kernels.casts", "kernels.gemm", "products.right", "steps.distinct",
    "step.bf16", "step.te-delayed", "step.te-blockwise", "step.te-current",
    "attention", "casts", "kernels.attention-cudnn", "kernels.others", "ahead.*",
    "peers.imports", "peers.1.torch.bf16-compile", "peers.1.own.bf16",
    "peers.1.torch.torchao-fp8-compile", "peers.1.own.te-current", "peers.1.own.te-delayed",
    "products.tensor", "products.block", "products.bf16", "products.row",
    "step.fp8-fast", "step.te-delayed-tuned",
    "curve.bf16", "curve.te-delayed", "curve.te-blockwise",
    "step.deepseek-v3", "step.torchao-rowwise", "steps.wiring", "attention.deterministic",
    "curve.*", "peers.1.torch.torchao-rowwise-compile", "peers.1.own.torchao-rowwise",
    "peers.2.*", "products.tuned", "ranks", "ranks.steps", "peers.1.torch.*-fsdp",
    "steps.all", "memcheck", "racecheck", "profile.*",
]


def rank(item: Item) -> int:
    """The position of the name itself in ORDER, else of the first pattern that matches it."""
    exact = [i for i, pattern in enumerate(ORDER) if pattern == item.name]
    return (exact or [i for i, pattern in enumerate(ORDER) if fnmatchcase(item.name, pattern)])[0]


def all_items() -> list[Item]:
    items = [
        *kernel_items(), *ahead_items(), *sanitizer_items(), *speed_items(), *peer_items(),
        *curve_items(), *sharded_items(),
    ]
    return sorted(items, key=rank)


def matches(item: Item, patterns: Sequence[str]) -> bool:
    """By name, by the first part of it, or by a pattern with * and ?."""
    return any(
        fnmatchcase(item.name, pattern) or item.name.startswith(f"{pattern}.")
        for pattern in patterns
    )


def chosen(groups: Sequence[int], only: Sequence[str], skip: Sequence[str]) -> list[Item]:
    """Raises ValueError for a pattern that no item matches."""
    items = all_items()
    for pattern in [*only, *skip]:
        if not any(matches(item, [pattern]) for item in items):
            raise ValueError(f"no item matches '{pattern}'; --list shows them")
    return [
        item
        for item in items
        if (not groups or item.group in groups)
        and (not only or matches(item, only))
        and not matches(item, skip)
    ]
