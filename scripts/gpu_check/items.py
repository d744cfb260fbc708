"""All items, in the order in which they run: within a group by value, so that a budget
cuts what matters least."""

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


def all_items() -> list[Item]:
    return [
        *kernel_items(), *ahead_items(), *sanitizer_items(), *speed_items(), *peer_items(),
        *curve_items(), *sharded_items(),
    ]


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
