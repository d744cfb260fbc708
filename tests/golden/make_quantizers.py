"""Writes tests/golden/ops/quantizers.txt, which tests/ops/quantizer_fixtures_test.cpp reads: what
other programs' quantizers give.

  cast SOURCE INPUT FORMAT GRANULARITY SCALE CODES SCALES ...
      fingerprints (FNV-1a) of the codes and of the scales: fp32 factors of the values, or E8M0
      bytes; a second pair is that of the transposed matrix
  corner AMAX SCALE
      the power-of-two scale of torchao for an amax, as fp32 bits
  delayed LENGTH ALGORITHM MARGIN FORMAT
      a run of delayed scaling, with the lines amax, scale and history after it

Sources: torchao's hp_tensor_to_float8_dynamic (tensor, row) and to_mx (1x32);
quantize_rules.py, the rules of TransformerEngine's block scaling in NumPy (1x128, 128x128). Delayed
scaling: `delayed_run` below. Inputs are made by rules that the test repeats (cast_inputs.py):
`spread` and `adversarial`, bf16; `real`, the embedding of tests/golden/run/stories260K, fp32, the
first tensor of its file.

Needs a Python that has torch, torchao, numpy and ml_dtypes (made with torch 2.15, torchao 0.18,
NumPy 2.4, ml_dtypes 0.6).
"""

import logging
import pathlib

import ml_dtypes
import numpy as np
import torch

logging.disable(logging.WARNING)

from torchao.float8.config import ScalingGranularity  # noqa: E402
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic  # noqa: E402
from torchao.float8.float8_training_tensor import LinearMMConfig  # noqa: E402
from torchao.float8.float8_utils import amax_to_scale  # noqa: E402
from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402

import quantize_rules as rules  # noqa: E402
from cast_inputs import adversarial, as_torch, fingerprint, spread, words  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def inputs():
    """name -> (numpy bits or values, whether all is finite)."""
    yield "spread.256.384", spread(256, 384), True
    for kind in range(8):
        yield f"adversarial.8.64.{kind}", adversarial(8, 64, [kind]), True
    yield "adversarial.136.160.01234567", adversarial(136, 160, list(range(8))), True
    yield "adversarial.136.160.0234567", adversarial(136, 160, [0, 2, 3, 4, 5, 6, 7]), True
    yield "adversarial.131.257.0123456789", adversarial(131, 257, list(range(10))), False
    model = (HERE / "run/stories260K/model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(model[:8], "little")
    embedding = np.frombuffer(model, dtype="<f4", count=32768, offset=begin)
    yield "real.128.256", embedding.reshape(128, 256), True


def prints(codes, scales):
    return (
        f"{fingerprint(codes.contiguous().view(torch.uint8).numpy().tobytes())} "
        f"{fingerprint(scales)}"
    )


def torchao_scaled(x, dtype, granularity, pow2):
    by_row = granularity == "row"
    got = hp_tensor_to_float8_dynamic(
        x,
        dtype,
        LinearMMConfig(),
        scaling_granularity=ScalingGranularity.AXISWISE
        if by_row
        else ScalingGranularity.TENSORWISE,
        axiswise_dim=-1 if by_row else None,
        round_scales_to_power_of_2=pow2,
    )
    return prints(got._data, got._scale.float().contiguous().numpy().tobytes())


MODES = {
    "e8m0": ScaleCalculationMode.RCEIL,
    "e8m0_floor": ScaleCalculationMode.FLOOR,
    "e8m0_even": ScaleCalculationMode.EVEN,
}


def torchao_mx(x, dtype, mode):
    scale, codes = to_mx(x, dtype, 32, mode)
    return prints(codes, scale.contiguous().view(torch.uint8).numpy().tobytes())


def has_tiny_blocks(x):
    """Whether 32 values, not all zeros, have the smallest scale, 2^-127: torchao multiplies them by
    1, not by 2^127, and codes do not fit to the scale."""
    blocks = as_torch(x).float().abs().reshape(-1, 32).amax(1)
    return bool(((blocks > 0) & (blocks < 448 * 2.0**-127)).any())


def has_huge_blocks(x, dtype):
    """Whether an amax is infinite once it is rounded as EVEN does: torchao 0.18 has a finite scale
    there, torchao 36027d8 a NaN."""
    half = 2.0 ** -(4 if dtype == torch.float8_e4m3fn else 3)
    return bool((as_torch(x).double().abs().max() >= (2 - half) * 2.0**127).item())


def written_down(x, name, granularity, scale):
    """One orientation, by the rules of quantize_rules.py; x as it is stored."""
    dtype = "BF16" if x.dtype == np.uint16 else "F32"
    values = (x.view(ml_dtypes.bfloat16) if x.dtype == np.uint16 else x).astype(np.float32)
    height, width = rules.blocks_of(granularity, *values.shape)
    amax = rules.block_amax(values, height, width)
    factor, _, _ = rules.scales(amax, rules.FORMATS[name][2], scale, rules.LARGEST[dtype])
    wide = np.repeat(np.repeat(factor, height, 0), width, 1)[: values.shape[0], : values.shape[1]]
    codes = rules.encode(values * wide, name, None)
    return f"{fingerprint(codes.tobytes())} {fingerprint(factor.astype('<f4').tobytes())}"


def casts():
    for input_name, x, finite in inputs():
        transposed = np.ascontiguousarray(x.T)
        for name, dtype in TORCH.items():
            if finite:
                for pow2 in (False, True):
                    scale = "pow2" if pow2 else "fp32"
                    whole = torchao_scaled(as_torch(x), dtype, "tensor", pow2)
                    yield f"cast torchao {input_name} {name} tensor {scale} {whole}"
                    rows = " ".join(
                        torchao_scaled(as_torch(each), dtype, "row", pow2)
                        for each in (x, transposed)
                    )
                    yield f"cast torchao {input_name} {name} row {scale} {rows}"
            if finite and not has_tiny_blocks(x):
                for scale, mode in MODES.items():
                    if scale == "e8m0_even" and has_huge_blocks(x, dtype):
                        continue
                    blocks = " ".join(
                        torchao_mx(as_torch(each), dtype, mode)
                        for each in (x, transposed)
                        if each.shape[1] % 32 == 0
                    )
                    yield f"cast torchao {input_name} {name} 1x32 {scale} {blocks}"
            for granularity in ("1x128", "128x128"):
                for scale in ("fp32", "pow2"):
                    both = " ".join(
                        written_down(each, name, granularity, scale) for each in (x, transposed)
                    )
                    yield f"cast rules {input_name} {name} {granularity} {scale} {both}"


def corners():
    """Amaxes next to 1.75 * 2^j: 448 / amax is next to a power of two, where exp2(floor(log2)) in
    fp32 may be the next one above."""
    for j in (-10, -3, 0, 1, 6, 20):
        for n in range(-3, 9):
            amax = (
                (np.array(1.75 * 2.0**j, dtype=np.float32).view(np.uint32) + np.uint32(n % 2**32))
                .astype(np.uint32)
                .view(np.float32)
            )
            scale = amax_to_scale(
                torch.tensor(float(amax)), torch.float8_e4m3fn, round_scales_to_power_of_2=True
            )
            yield f"corner {amax.view(np.uint32):08x} {scale.float().numpy().view(np.uint32):08x}"


def amaxes(count):
    """Ordinary values, zeros, infinities, NaN, and one whose quotient overflows."""
    for w in words(count):
        kind = w % 12
        special = {0: 0.0, 1: np.inf, 2: np.nan, 3: 1e-42}
        yield np.float32(special.get(kind, np.ldexp(1 + (w >> 8) / 256, w % 40 - 20)))


def delayed_run(length, most_recent, margin, largest, steps):
    """One slot of delayed scaling. The history has the step's amax in row 0, and in rows 1.. the
    older ones, oldest first; a window is all rows. An amax of 0 (not used in this step), infinite
    or NaN changes nothing; otherwise the scale follows from the window before the rows move up by
    one, the oldest falls out, the amax becomes the last row and row 0 is zero again."""
    history = np.zeros(length, dtype=np.float32)
    scale = np.float32(1)
    for amax in steps:
        if amax > 0 and np.isfinite(amax):
            history[0] = amax
            window = amax if most_recent else history.max()
            scale = np.float32(largest) * np.float32(2.0**-margin) / window
            scale = np.float32(3.40282347e38) if np.isinf(scale) else scale
            history = np.roll(history, -1)
            history[-1] = amax
            history[0] = 0
        yield scale, history


def delayed():
    for length in (1, 2, 5, 16):
        for most_recent in (False, True):
            for name, largest in (("e4m3", 448.0), ("e5m2", 57344.0)):
                margin = length % 3
                steps = list(amaxes(40))
                states = list(delayed_run(length, most_recent, margin, largest, steps))
                hexadecimal = lambda values: " ".join(
                    f"{np.float32(v).view(np.uint32):08x}" for v in values
                )
                yield f"delayed {length} {'most_recent' if most_recent else 'max'} {margin} {name}"
                yield f"amax {hexadecimal(steps)}"
                yield f"scale {hexadecimal(scale for scale, _ in states)}"
                # Row 0 is only the place of the next amax where there are others.
                yield f"history {hexadecimal(states[-1][1][1:])}"


def main():
    np.seterr(all="ignore")
    lines = [*casts(), *corners(), *delayed()]
    (HERE / "ops" / "quantizers.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
