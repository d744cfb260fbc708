"""Weights, tokens and signs from a hash of integers, which tests/train/oracle_model.h repeats bit
for bit: SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA
2014)."""

import numpy as np

U64 = np.uint64
# Eight steps of 2^(1/2).
FACTORS = np.array([8, 11, 16, 23, 32, 45, 64, 91], np.int64)


def mixed(z):
    with np.errstate(over="ignore"):
        z = np.asarray(z, U64)
        z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
        return z ^ (z >> U64(31))


def name_hash(name):
    """FNV-1a, 32 bits."""
    h = 2166136261
    for c in name.encode():
        h = ((h ^ c) * 16777619) & 0xFFFFFFFF
    return h


def bits(step, name, use, count):
    key = mixed(U64((step << 40) | (use << 32) | name_hash(name)))
    with np.errstate(over="ignore"):
        return mixed(key + np.arange(count, dtype=U64) * U64(0x9E3779B97F4A7C15))


def factors(step, name, use, count):
    return FACTORS[(bits(step, name, use, count) & U64(7)).astype(np.int64)]


ELEMENT, ROW, COLUMN, OF_STEP, TOKEN, TARGET, SIGN, WIDE = range(8)
SHIFT = {"embedding.weight": 28, "head.weight": 35}  # others: 34
VECTOR_SHIFT, BIAS_SHIFT = 16, 20


def exponents(name, count):
    """From -10 to 10."""
    return (bits(0, name, WIDE, count) % U64(21)).astype(np.int64) - 10


def spread(name, shape):
    """Powers of two that cancel in the model. Channels of the norms' results, and those of the
    product of gate and up, differ by more than the range of E4M3, so that a block along another
    axis loses other values."""
    block, _, last = name.removesuffix(".weight").rpartition(".")
    power = np.zeros(shape, np.int64)
    if last in ("attention_norm", "mlp_norm"):
        power += exponents(name, shape[-1])
    elif last in ("qkv", "up"):
        norm = block.replace(".attention", ".attention_norm").replace(".mlp", ".mlp_norm")
        power -= exponents(f"{norm}.weight", shape[1])
    elif last == "down":
        power -= exponents(name, shape[1])
    if last == "up":
        half = shape[0] // 2
        power[half:] += exponents(f"{block}.down.weight", half)[:, None]
    return 2.0**power


def value(step, name, shape, wide):
    """A matrix: nearly normal, with factors of rows, columns and the step. A vector: gains, or the
    biases of a router, which are smaller."""
    if len(shape) == 1:
        draw = bits(step, name, ELEMENT, shape[0])
        more = ((draw >> U64(8)) & U64(1023)).astype(np.int64)
        whole = FACTORS[(draw & U64(7)).astype(np.int64)] * (1024 + more)
        shift = BIAS_SHIFT if name.endswith("router.bias") else VECTOR_SHIFT
    else:
        draw = bits(step, name, ELEMENT, shape[0] * shape[1])
        lanes = sum(((draw >> U64(s)) & U64(0xFFFF)).astype(np.int64) for s in (0, 16, 32, 48))
        whole = (lanes - 131070).reshape(shape) * factors(0, name, ROW, shape[0])[:, None]
        whole = whole * factors(0, name, COLUMN, shape[1])
        whole = whole * (5 + int(bits(step, name, OF_STEP, 1)[0] & U64(7)))
        shift = SHIFT.get(name, 34)
        if name.endswith("router.weight"):
            whole[-1] = whole[-2]  # two experts have the same score
    result = whole.astype(np.float32).astype(np.float64) * 2.0**-shift
    return result * spread(name, shape) if wide else result


def batch(step, micro, count, vocabulary):
    """Tokens and targets of a micro-batch."""
    return tuple(
        (bits(step * 8 + micro, "tokens", use, count) % U64(vocabulary)).astype(np.int64)
        for use in (TOKEN, TARGET)
    )


def projections(name, gradient, count):
    """Sums of the elements with random signs."""
    flat = gradient.ravel()
    draw = bits(0, name, SIGN, flat.size)
    return [float(np.where((draw >> U64(p)) & U64(1), -flat, flat).sum()) for p in range(count)]
