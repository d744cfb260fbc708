"""Writes tests/golden/numeric/*.bin, the expected FP8 codes of tests/numeric. Needs numpy,
ml_dtypes and torch.

  values_<fp8>.bin             256 fp32 values, one per code (NaN for NaN)
  <input>_to_<fp8>_<mode>.bin  32,768 codes, of the non-negative bf16 or fp16 patterns
                               0x0000..0x7FFF
  sample.bin                   4,096 records: fp32 bits u32, bf16 u16, fp16 u16, then e4m3 and e5m2
                               without saturation, u8 each
mode: sat (clipped to the largest finite value before the cast, as satfinite does) or nosat. Two
libraries must agree on each table; where torch itself saturates (E4M3) it is the second opinion for
`sat`, elsewhere for `nosat`. NaN is compared as NaN only.
"""

import pathlib

import ml_dtypes
import numpy as np
import torch

FP8 = {
    "e4m3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn, 448.0),
    "e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2, 57344.0),
}
INPUT = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
out = pathlib.Path(__file__).parent / "numeric"


def second_opinion(x, torch_type):
    return torch.from_numpy(x).to(torch_type).view(torch.uint8).numpy()


def same(codes, other, ml_type):
    nan = np.isnan(codes.view(ml_type).astype(np.float32))
    assert np.array_equal(nan, np.isnan(other.view(ml_type).astype(np.float32)))
    assert np.array_equal(codes[~nan], other[~nan])


def main():
    out.mkdir(exist_ok=True)
    for name, (ml_type, torch_type, largest) in FP8.items():
        np.arange(256, dtype=np.uint8).view(ml_type).astype("<f4").tofile(
            out / f"values_{name}.bin"
        )
        for source, source_type in INPUT.items():
            with np.errstate(invalid="ignore", over="ignore"):
                x = np.arange(0x8000, dtype=np.uint16).view(source_type).astype(np.float32)
                codes = {"nosat": x.astype(ml_type).view(np.uint8),
                         "sat": np.clip(x, -largest, largest).astype(ml_type).view(np.uint8)}
            mode = "sat" if name == "e4m3" else "nosat"
            same(codes[mode], second_opinion(x, torch_type), ml_type)
            for mode, table in codes.items():
                table.tofile(out / f"{source}_to_{name}_{mode}.bin")

    rng = np.random.default_rng(8)
    exponent = rng.integers(127 - 30, 127 + 18, 4096).astype(np.uint32)
    exponent[:256] = 0
    bits = rng.integers(0, 2, 4096).astype(np.uint32) << 31 | exponent << 23
    bits |= rng.integers(0, 1 << 23, 4096).astype(np.uint32)
    x = bits.view(np.float32)
    record = np.zeros(
        4096,
        dtype=[("f32", "<u4"), ("bf16", "<u2"), ("fp16", "<u2"), ("e4m3", "u1"), ("e5m2", "u1")],
    )
    with np.errstate(over="ignore"):
        record["f32"] = bits
        record["bf16"] = torch.from_numpy(x).bfloat16().view(torch.uint16).numpy()
        record["fp16"] = x.astype(np.float16).view(np.uint16)
        for name, (ml_type, _, _) in FP8.items():
            record[name] = x.astype(ml_type).view(np.uint8)
    record.tofile(out / "sample.bin")


main()
