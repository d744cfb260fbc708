#!/usr/bin/env python3
"""Writes tests/golden/ops/mxfp8_squares.txt, which tests/ops/mxfp8_squares_test.cpp reads: what
TransformerEngine makes of MXFP8 weights in squares.

Called with a clone of TransformerEngine, which is read as its HEAD has it, by a Python that has
torch and numpy (made with torch 2.15 from commit d0067d0).

  cast SOURCE INPUT FORMAT CODES SCALES CODES SCALES
      fingerprints (FNV-1a) of codes and of E8M0 scales, one for 32 elements of a row, of the matrix
      and of its transpose

SOURCE is `python`, _mxfp8_2d_quantize_reference of tests/pytorch/test_mxfp8_2d_quantize.py run as
it is, of the matrix with zeros up to whole squares; it has no infinities. Or `cuda`:
compute_ref_2d_quantize of tests/cpp/operator/test_cast_mxfp8.cu with float_to_e8m0 and exp2f_rcp of
tests/cpp/test_common.h, restated here in NumPy. Squares with a NaN are taken as zero.
"""

import numpy as np
import torch

from cast_inputs import adversarial, as_torch, spread
from make_te_references import HERE, TORCH, bytes_of, encode, functions, prints

SIDE = 32


def padded(values):
    rows, columns = values.shape
    return np.pad(values, ((0, -rows % SIDE), (0, -columns % SIDE)))


def squares(values):
    return values.reshape(values.shape[0] // SIDE, SIDE, values.shape[1] // SIDE, SIDE)


def result(x, codes, scales):
    """Of whole squares, cut to x; scales: one for each square."""
    rows, columns = x.shape
    bad = squares(padded(np.isnan(x))).any(axis=(1, 3))
    codes = np.where(np.repeat(np.repeat(bad, SIDE, 0), SIDE, 1), 0, codes)[:rows, :columns].astype(
        np.uint8
    )
    scales = np.where(bad, 0, scales).astype(np.uint8)
    down, across = np.repeat(scales, SIDE, 0)[:rows], np.repeat(scales, SIDE, 1)[:, :columns]
    transposed = prints(np.ascontiguousarray(codes.T), np.ascontiguousarray(across.T))
    return f"{prints(codes, np.ascontiguousarray(down))} {transposed}"


def python_cast(reference, x):
    codes, down, across = reference(torch.from_numpy(padded(x)))
    assert np.array_equal(down[::SIDE].numpy(), across[:, ::SIDE].numpy())
    return result(x, bytes_of(codes), down[::SIDE].numpy())


def cuda_cast(x, name):
    values = padded(x)
    amax = np.fmax.reduce(np.abs(squares(values)), axis=(1, 3), initial=np.float32(0))
    with np.errstate(all="ignore"):
        product = (amax * np.float32(1.0 / torch.finfo(TORCH[name]).max)).astype(np.float32)
    bits = product.view(np.uint32).astype(np.int64)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    up = (mantissa > 0) & (exponent != 0xFE) & ~((exponent == 0) & (mantissa <= 0x400000))
    scales = np.where(product == 0, 0, np.where(np.isinf(product), 0xFE, exponent + up))
    factor = (
        np.where(scales == 0xFE, 0x00400000, (0xFE - scales) << 23)
        .astype(np.uint32)
        .view(np.float32)
    )
    scaled = values * np.repeat(np.repeat(factor, SIDE, 0), SIDE, 1)
    return result(x, encode(scaled.astype(np.float32), name), scales)


def inputs():
    yield "spread.256.384", spread(256, 384)
    yield "spread.1.16", spread(1, 16)
    for rows, columns, kinds in [(64, 96, kind) for kind in "0123456789"] + [
        (131, 257, "01234567"), (33, 31, "34"), (37, 45, "058"), (100, 130, "0123456789"),
    ]:  # fmt: skip
        yield (
            f"adversarial.{rows}.{columns}.{kinds}",
            adversarial(rows, columns, [int(kind) for kind in kinds]),
        )


def main():
    names = ["_float_to_e8m0", "_e8m0_to_scale_inv", "_mxfp8_2d_quantize_reference"]
    scope = functions(
        "tests/pytorch/test_mxfp8_2d_quantize.py",
        names,
        {"torch": torch, "MXFP8_BLOCK_SIZE": 32, "FP8_E4M3_MAX": 448.0},
    )
    lines = []
    for name, bits in inputs():
        x = as_torch(bits).float().numpy()
        if np.isfinite(x).all():
            lines.append(
                f"cast python {name} e4m3 {python_cast(scope['_mxfp8_2d_quantize_reference'], x)}"
            )
        lines += [f"cast cuda {name} {code} {cuda_cast(x, code)}" for code in TORCH]
    (HERE / "ops" / "mxfp8_squares.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
