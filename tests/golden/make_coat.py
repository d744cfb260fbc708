#!/usr/bin/env python3
"""Writes ops/coat_adamw.bin: COAT's AdamW with expanded moments, element by element as
coat/optimizer/kernels/fp8_adamw_expand_cuda_kernel.cu (github.com/NVlabs/COAT) computes it: its
order of fp32 operations, its reductions over the lanes of a warp, its roundings. Nothing is taken
from this program.

The kernel has four accidents that the program leaves out on purpose. A group that meets one of them
is written as the kernel would make it without that accident, and carries its flag:
  ZERO     a zero in some lane hides other lanes' smallest values, or becomes the smallest value
           itself
  TINY     1e-30 is added to the largest and the smallest value, which moves them where they are
           small
  NARROW   the exponent is above 16, and infinite where all values are equal
  FLOORED  (an element of v) its code is 0 where that of m is not: the program keeps the smallest
           code above 0

Little-endian. Header: 3 int32 (cases, updates, elements). Then
  cases    groups of 128 that are m after one step with beta1 = 0, and whose squares are v: int32
           length, length fp32 values, and a Moment for m and for v
  updates  of `elements` elements from zero states with betas 0.9 and 0.95: length bf16 gradients,
           then for each of m and v a Moment for each group
Moment: int32 flags, fp32 exponent, center and scale (what codes are multiplied by when they are
read), length codes, and for v length bytes that are 1 for FLOORED elements.

Inputs are drawn again until no code and no exponent depends on the last bits of a logarithm or a
power: a perturbation of 1e-5 changes none.

Needs numpy and ml_dtypes; neither the build nor the tests do.
"""
import pathlib
import struct

import ml_dtypes
import numpy as np

F = np.float32
GROUP, EXPAND_MIN, MAX = 128, 16, F(448)
ZERO, TINY, NARROW = 1, 2, 4
SLACK = 1e-5
UPDATES, ELEMENTS, BETA1, BETA2 = 120, 300, F(0.9), F(0.95)


def shuffle_down(lanes, distance):
    """A lane without a partner gets its own value."""
    return np.concatenate([lanes[distance:], lanes[-distance:]])


def reduce_warp(largest, smallest):
    for distance in (16, 8, 4, 2, 1):
        other = shuffle_down(smallest, distance)
        largest = np.fmax(largest, shuffle_down(largest, distance))
        smallest = np.where(other > 0, np.fmin(smallest, other), smallest)
    return largest[0], smallest[0]


def reduce_block(magnitudes):
    """Of a block of 128 threads, the last of which may have no element."""
    largest = np.zeros(GROUP, F)
    smallest = np.full(GROUP, np.finfo(F).max, F)
    largest[: len(magnitudes)] = smallest[: len(magnitudes)] = magnitudes
    warps = [reduce_warp(largest[i : i + 32], smallest[i : i + 32]) for i in range(0, GROUP, 32)]
    first = np.zeros(32, F)
    second = np.full(32, 1e9, F)
    first[:4], second[:4] = zip(*warps)
    return reduce_warp(first, second)


def power(x, exponent):
    """powf: correctly rounded, which no powf is wrong by more than a few ulp of."""
    return np.power(np.float64(x), np.float64(exponent)).astype(F)


def encode(x):
    return np.clip(x, -MAX, MAX).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def exponent_of(ratio):
    with np.errstate(divide="ignore"):
        return F(
            np.floor(F(F(np.log2(MAX * MAX / F(2)) / np.log2(ratio)) * F(EXPAND_MIN)))
            / F(EXPAND_MIN)
        )


class Moment:
    """A group after an update. error: the relative uncertainty of each value."""

    def __init__(self, values, error):
        magnitudes = np.abs(values)
        largest, smallest = reduce_block(magnitudes)
        self.flags = 0
        present = magnitudes[magnitudes > 0]
        if len(present) == 0:  # the kernel reads these zeros as 1e-30 in the next step
            self.flags = ZERO | TINY | NARROW
            self.exponent = self.center = F(1)
            self.scale = F(1)
            self.codes = encode(values)
            self.certain = True
            return
        if smallest != present.min():
            self.flags |= ZERO
            smallest = present.min()
        moved = [F(np.float64(x) + 1e-30) for x in (largest, smallest)]
        if moved != [largest, smallest]:
            self.flags |= TINY
        ratio = largest / smallest
        exponent = exponent_of(ratio)
        if not exponent <= 16:
            self.flags |= NARROW
            exponent = F(1) if ratio == 1 else F(16)
        center = np.sqrt(largest) * np.sqrt(smallest)
        self.exponent, self.center = exponent, center
        self.scale = power(largest / center, exponent) / MAX
        expanded = np.where(np.signbit(values), F(-1), F(1)) * power(magnitudes / center, exponent)
        scaled = (expanded / self.scale).astype(F)
        self.codes = encode(scaled)
        uncertain = SLACK + np.float64(exponent) * (
            3e-7 + error + error[np.argmin(np.where(magnitudes > 0, magnitudes, np.inf))]
        )
        self.certain = all(
            (encode((scaled * (1 + sign * uncertain)).astype(F)) == self.codes).all()
            for sign in (-1, 1)
        )
        if ratio != 1:
            steps = 16 * np.log2(100352.0) / np.log2(np.float64(ratio))
            self.certain &= steps > 257 or abs(steps - round(steps)) > 1e-4 * steps

    def read(self):
        code = self.codes.view(ml_dtypes.float8_e4m3fn).astype(F) * self.scale
        return (
            np.where(np.signbit(code), F(-1), F(1))
            * power(np.abs(code), F(1) / self.exponent)
            * self.center
        )

    def bytes(self):
        return (
            struct.pack("<ifff", self.flags, self.exponent, self.center, self.scale)
            + self.codes.tobytes()
        )


def floored(first, second):
    return ((first.codes & 0x7F) != 0) & (second.codes == 0)


def pair(first, second):
    """The bytes of m and v, after what the program keeps of v has been put into its codes."""
    raised = floored(first, second)
    second.codes = np.where(raised, np.uint8(1), second.codes)
    return first.bytes(), second.bytes() + raised.astype(np.uint8).tobytes()


def case(random, draw):
    while True:
        values = draw(random).astype(F)
        first = Moment(values, np.zeros(len(values)))
        second = Moment(values * values, np.full(len(values), 1e-7))
        if first.certain and second.certain:
            return struct.pack("<i", len(values)) + values.tobytes() + b"".join(pair(first, second))


def spread(decades, amax=1.0, zeros=0, length=GROUP):
    def draw(random):
        values = amax * 10.0 ** (-decades * random.random(length)) * random.choice([-1, 1], length)
        values[random.permutation(length)[:zeros]] = 0
        return values

    return draw


def cases(random):
    for decades in (0.02, 0.1, 0.3, 0.6, 1, 2, 3, 4, 5, 5.3, 6, 8, 10):
        yield case(random, spread(decades))
    for decades in (0.5, 3, 6):  # v below 1: ratios above 1e5 of m, 1e10 of v
        for amax in (1e-3, 1e-7, 1e6):
            yield case(random, spread(decades, amax))
    for zeros in (1, 2, 8, 40, 100, 127, 128):
        yield case(random, spread(2, 1e-2, zeros))
    for length in (1, 2, 31, 32, 33, 100):
        yield case(random, spread(3, 0.1, length // 10, length))
    yield case(random, spread(3, 1e-25))
    yield case(random, spread(3, 1e-12, 10))
    yield case(random, lambda random: np.full(GROUP, 0.25))
    for _ in range(8):
        yield case(random, lambda random: random.standard_normal(GROUP) * 1e-3)


def update(random, state, step, begins):
    """One optimizer step; the bytes to write and the new state."""
    out = [b"", b""]
    gradients, groups = [], []
    for group, at in enumerate(range(0, ELEMENTS, GROUP)):
        length = min(GROUP, ELEMENTS - at)
        reach = (1.0, 4.0, 2.0)[group]
        while True:
            size = 10.0 ** (-reach * np.linspace(0, 1, length)) * 1e-2
            gradient = random.standard_normal(length) * size * (random.random(length) > 0.1)
            gradient = np.where(step >= begins[at : at + length], gradient, 0).astype(
                ml_dtypes.bfloat16
            )
            g = gradient.astype(F)
            m, v = (old.read() if old else np.zeros(length, F) for old in state[group])
            new_m = BETA1 * m + (F(1) - BETA1) * g
            new_v = BETA2 * v + (F(1) - BETA2) * g * g
            with np.errstate(divide="ignore", invalid="ignore"):
                error = 1e-6 * (np.abs(BETA1 * m) + np.abs((F(1) - BETA1) * g)) / np.abs(new_m)
            first = Moment(new_m, np.where(new_m == 0, 0, error).astype(np.float64))
            second = Moment(new_v, np.full(length, 1e-6))
            if first.certain and second.certain:
                break
        gradients.append(gradient.tobytes())
        m_bytes, v_bytes = pair(first, second)
        out[0] += m_bytes
        out[1] += v_bytes
        groups.append((first, second))
    return b"".join(gradients) + out[0] + out[1], groups


def main():
    random = np.random.default_rng(16)
    all_cases = list(cases(random))
    # When an element begins to have gradients: from the start, later, never. The
    # first group has no zeros.
    begins = np.zeros(ELEMENTS, int)
    begins[GROUP:] = np.where(
        random.random(ELEMENTS - GROUP) < 0.3, random.integers(1, 100, ELEMENTS - GROUP), 0
    )
    begins[random.permutation(np.arange(2 * GROUP, ELEMENTS))[:6]] = UPDATES
    state = [(None, None)] * 3
    updates = []
    for step in range(UPDATES):
        written, state = update(random, state, step, begins)
        updates.append(written)
    path = pathlib.Path(__file__).parent / "ops" / "coat_adamw.bin"
    path.write_bytes(
        struct.pack("<3i", len(all_cases), UPDATES, ELEMENTS)
        + b"".join(all_cases)
        + b"".join(updates)
    )


main()
