"""Number formats, scales and casts.

Rules, as repository@commit path:
  [te]     NVIDIA/TransformerEngine@d0067d0
  [ao]     pytorch/ao@36027d8
  [msamp]  Azure/MS-AMP@9746ea8
  [coat]   NVlabs/COAT@80ec99f
"""

import dataclasses

import numpy as np

F32 = np.float32

# Smallest exponent of a normal number, bits of the mantissa, largest value.
MINIFLOATS = {"e4m3": (-6, 3, 448.0), "e5m2": (-14, 2, 57344.0), "e2m1": (0, 1, 6.0)}
MAX = {name: largest for name, (_, _, largest) in MINIFLOATS.items()} | {
    "int8": 127.0,
    "fp16": 65504.0,
}


def nearest(name, x):
    """Round to nearest even; saturates."""
    x = np.asarray(x, np.float64)
    if name == "int8":
        return np.clip(np.rint(x), -127, 127)
    smallest, mantissa, largest = MINIFLOATS[name]
    exponent = np.maximum(np.frexp(x)[1] - 1, smallest) - mantissa
    return np.clip(np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent), -largest, largest)


def bf16(x):
    bits = np.asarray(x, F32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(F32).astype(np.float64)


def fp16(x):
    return np.asarray(x, F32).astype(np.float16).astype(np.float64)


def fp32(x):
    return np.asarray(x, F32).astype(np.float64)


ROUND = {"bf16": bf16, "fp16": fp16, "fp32": fp32}


def power_below(scale):
    """[te] common/recipe/recipe_common.cuh: the mantissa is cleared."""
    return (np.asarray(scale, F32).view(np.uint32) & np.uint32(0xFF800000)).view(F32)


@dataclasses.dataclass(frozen=True)
class Cast:
    """block: None is the tensor, "row" all that is contracted, n a vector of n that are contracted,
    (n, n) a square. scale: fp32, pow2, e8m0, e8m0_floor or e4m3 (under one of the tensor or,
    by_row, of each row). four_over_six: "", MAE or MSE. policy: current, delayed, or step
    (MS-AMP's)."""

    format: str = "e4m3"
    block: object = None
    scale: str = "fp32"
    policy: str = "current"
    hadamard: bool = False
    epsilon: float = 0.0
    by_row: bool = False
    four_over_six: str = ""
    bound: int = 448  # 256 as a rule with 4over6
    # For wrong oracles:
    wrong_axis: bool = False
    global_one: bool = False  # no scale of the tensor


def scale_of(cast, amax):
    """What x is multiplied by. [te] common/recipe/recipe_common.cuh, common/util/ptx_arch_spec.cuh
    (float_to_e8m0); [ao] torchao/float8/float8_utils.py (amax_to_scale, in fp64),
    torchao/prototype/mx_formats/mx_tensor.py (to_mx, FLOOR)."""
    amax = np.asarray(amax, F32)
    largest = MAX[cast.format]
    with np.errstate(divide="ignore", over="ignore"):
        if cast.scale == "e8m0_floor":
            exponent = np.frexp(amax)[1] - np.frexp(largest)[1]
            scale = np.ldexp(F32(1), -exponent)
        elif cast.scale == "e8m0":
            bits = (amax * F32(1 / F32(largest))).view(np.uint32)
            up = (bits & 0x7FFFFF) > 0
            scale = F32(2.0) ** (127 - ((bits >> 23) + up).astype(np.int32)).astype(F32)
        elif cast.epsilon:
            scale = (largest / np.maximum(amax.astype(np.float64), cast.epsilon)).astype(F32)
        else:
            scale = F32(largest) / amax
    if cast.scale == "pow2":
        scale = power_below(scale)
    return np.where(amax > 0, scale, F32(1))


def encoded(name, x, scale):
    """Codes of x under a scale, times its fp32 inverse."""
    scale = np.asarray(scale, F32)
    return nearest(name, np.asarray(x, F32) * scale) * (F32(1) / scale).astype(np.float64)


SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


def hadamard(x):
    """[te] pytorch/custom_recipes/reference_nvfp4.py (_apply_rht): along the last axis, to bf16."""
    h = np.ones((1, 1))
    while len(h) < 16:
        h = np.block([[h, h], [h, -h]])
    return bf16((x.reshape(-1, 16) @ (np.diag(SIGNS) @ h / 4)).reshape(x.shape))


def under(x, inner, whole):
    """Codes of x under a scale of their block and one above it."""
    with np.errstate(divide="ignore"):
        encode = np.minimum(F32(1) / (inner * (F32(1) / whole)), np.finfo(F32).max)
    return nearest("e2m1", x * encode)


def errors(cast, x, inner, codes, top):
    """[te] the same file (_quantize_blockwise_4over6_reference), in its order: the elements of a
    line one after another, then the lines of a square in a tree."""
    apart = codes.astype(F32) * inner * top / F32(6 * cast.bound) - x
    apart = np.moveaxis(np.square(apart) if cast.four_over_six == "MSE" else np.abs(apart), -1, 0)
    total = np.cumsum(apart, 0, dtype=F32)[-1][..., None]
    while total.ndim == 4 and total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total


def two_level(cast, x, amax):
    """[te] pytorch/custom_recipes/reference_nvfp4.py (_quantize_blockwise_reference). `x` has an
    axis for the elements of a block, where `amax` has the length 1."""
    x, amax = x.astype(F32), amax.astype(F32)
    top = np.max(amax, 1, keepdims=True) if cast.by_row else np.max(amax)
    whole = F32(1) if cast.global_one else F32(6 * cast.bound) / top
    if not cast.four_over_six:
        inner = nearest("e4m3", amax * (whole * (F32(1) / F32(6)))).astype(F32)
        return under(x, inner, whole) * inner / whole.astype(np.float64)
    base = amax / F32(6) * whole
    inners = [nearest("e4m3", base * F32(factor)).astype(F32) for factor in (1, 1.5)]
    codes = [under(x, inner, whole) for inner in inners]
    six, four = [errors(cast, x, i, c, top) for i, c in zip(inners, codes)]
    read = [c * i / whole.astype(np.float64) for i, c in zip(inners, codes)]
    return np.where(four < six, read[1], read[0])


def blocks(block, x):
    """x with its blocks as axes of their own, and those axes; rows are contracted."""
    rows, columns = x.shape
    if isinstance(block, tuple):
        n = block[0]
        return x.reshape(rows // n, n, columns // n, n), (1, 3)
    n = columns if block == "row" else block
    return x.reshape(rows, columns // n, n), (2,)


def quantized(cast, x, along, slot=None):
    """x [m, n] as a GEMM reads it that contracts axis `along`. `slot` holds a delayed scale."""
    if cast.format in ROUND:
        return ROUND[cast.format](x)
    x = np.asarray(x, np.float64)
    if cast.block is None:
        amax = F32(np.max(np.abs(x)))
        scale = slot.scale(amax) if slot else scale_of(cast, amax)
        return encoded(cast.format, x, scale)
    turned = (along == 0) != cast.wrong_axis
    x = x.T if turned else x
    if cast.hadamard:
        x = hadamard(x)
    shape = x.shape
    if isinstance(cast.block, int):  # the last block of a line may be a part
        x = np.pad(x, ((0, 0), (0, -shape[1] % cast.block)))
    parts, axes = blocks(cast.block, x)
    amax = np.max(np.abs(parts), axis=axes, keepdims=True)
    if cast.scale == "e4m3":
        result = two_level(cast, parts, amax)
    else:
        result = encoded(cast.format, parts, scale_of(cast, amax))
    result = result.reshape(x.shape)[:, : shape[1]]
    return result.T if turned else result


class Window:
    """A history of amax that moves with micro-batches, or with steps."""

    def end_micro_batch(self):
        if not self.per_step:
            self.update()

    def end_step(self):
        if self.per_step:
            self.update()


class Delayed(Window):
    """[te] common/recipe/delayed_scaling.cu (kernel_bulk): the scale of the largest amax of the
    newest `length` micro-batches, 1 at first; an amax of 0 does not enter. Wrong oracles give the
    other arguments."""

    def __init__(self, cast, length, newest=True, first_is_current=False, per_step=False, pick=max):
        self.cast, self.length, self.newest, self.pick = cast, length, newest, pick
        self.first_is_current, self.per_step = first_is_current, per_step
        self.history, self.amax, self.now = [], F32(0), F32(1)

    def scale(self, amax):
        self.amax = max(self.amax, amax)
        if self.first_is_current and not self.history:
            return scale_of(self.cast, amax)
        return self.now

    def update(self):
        if self.amax > 0:
            self.history.append(self.amax)
            end = len(self.history) - (0 if self.newest else 1)
            window = self.history[max(0, end - self.length) : end]
            self.now = scale_of(self.cast, self.pick(window)) if window else self.now
        self.amax = F32(0)


class PerStep(Window):
    """[msamp] msamp/common/tensor/cast.py, msamp/optim/optimizer.py (_update_scaling_factors): the
    window moves with the optimizer's steps; while it fills, each tensor has its own scale."""

    def __init__(self, cast, length, warms_up=True, per_step=True, combines=False):
        self.cast, self.length, self.warms_up, self.per_step = cast, length, warms_up, per_step
        self.combines = combines
        self.history, self.amax, self.now = [], F32(0), F32(1)

    def scale(self, amax):
        if self.warms_up and len(self.history) < self.length:
            # Of the last micro-batch: meta.amax[0] = input.abs().max().
            self.amax = max(self.amax, amax) if self.combines else amax
            return scale_of(self.cast, amax)
        self.amax = max(self.amax, amax)
        return self.now

    def update(self):
        self.history.append(self.amax)
        self.now = scale_of(self.cast, max(self.history[-self.length :]))
        self.amax = F32(0)
