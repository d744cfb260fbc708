"""Matrices of bf16 bits that are made by a rule, which tests/ops/quantizer_fixtures_test.cpp
repeats, and fingerprints of results."""

import numpy as np
import torch


def words(count):
    """16 bits at a time from a linear congruential generator."""
    state = 12345
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        yield state >> 16


def spread(rows, columns):
    bits = [(w & 0x807F) | ((100 + (w >> 7) % 50) << 7) for w in words(rows * columns)]
    return np.array(bits, dtype=np.uint16).reshape(rows, columns)


def adversarial(rows, columns, kinds):
    """Row r is of kind kinds[r % len(kinds)]."""
    bits = np.empty((rows, columns), dtype=np.uint16)
    for i, w in enumerate(words(rows * columns)):
        row, column = divmod(i, columns)
        e, sign = (w >> 7) & 0xFF, w & 0x8000
        bits[row, column] = {
            0: sign,  # zeros
            1: w & 0x807F,  # subnormals
            2: (w & 0x807F) | (240 + e % 15) << 7,  # up to the largest
            3: (w & 0x807F) | (200 if column == 5 else 100 + e % 30) << 7,  # an outlier
            4: (w & 0x807F) | (1 + e % 20) << 7,  # next to the subnormals
            5: (w & 0x807F) | (100 + e % 50) << 7,
            6: sign | (90 + e % 70) << 7,  # powers of two
            7: sign | 0x7F | (90 + e % 70) << 7,  # as far as can be from them
            # infinities
            8: sign | 0x7F80 if column % 9 == 4 else (w & 0x807F) | (120 + e % 9) << 7,
            9: 0x7FC0 if column % 50 == 7 else (w & 0x807F) | (120 + e % 9) << 7,  # NaN
        }[kinds[row % len(kinds)]]
    return bits


def fingerprint(data):
    result = 0xCBF29CE484222325
    for byte in data:
        result = ((result ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{result:016x}"


def as_torch(x):
    return (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        if x.dtype == np.uint16
        else torch.from_numpy(x.copy())
    )
