"""Prints the table of tests/ops/quantize_blockwise_test.cpp: fingerprints of codes and scales that
torchao computes.

Run with a Python that has torch and torchao (made with torch 2.15, torchao 0.18). MX: to_mx with
RCEIL. Rows: the axis-wise scales of torchao.float8. Input: bf16 values of 256 x 384 from a linear
congruential generator, the same as in the test.
"""

import logging

import numpy
import torch

logging.disable(logging.WARNING)

from torchao.float8.config import ScalingGranularity  # noqa: E402
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated  # noqa: E402
from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402

ROWS, COLUMNS = 256, 384


def values():
    bits = numpy.empty(ROWS * COLUMNS, dtype=numpy.uint16)
    state = 12345
    for i in range(bits.size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        word = state >> 16
        bits[i] = (word & 0x807F) | ((100 + (word >> 7) % 50) << 7)
    return torch.from_numpy(bits.view(numpy.int16)).view(torch.bfloat16).reshape(ROWS, COLUMNS)


def fingerprint(tensor):
    """FNV-1a of the tensor's bytes."""
    result = 0xCBF29CE484222325
    for byte in tensor.contiguous().view(torch.uint8).numpy().tobytes():
        result = ((result ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"0x{result:016X}U"


def show(dtype, granularity, scale_type, oriented):
    for x in oriented:
        if granularity == "block_1x32":
            scale, codes = to_mx(x, dtype, 32, ScaleCalculationMode.RCEIL)
        else:
            scale = tensor_to_scale(
                x,
                dtype,
                scaling_granularity=ScalingGranularity.AXISWISE,
                axiswise_dim=-1,
                round_scales_to_power_of_2=scale_type == "pow2",
            ).float()
            codes = to_fp8_saturated(x.float() * scale, dtype)
        yield f"{fingerprint(codes)}, {fingerprint(scale)}"


def main():
    x = values()
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        for granularity, scale_type in (("block_1x32", "e8m0"), ("row", "f32"), ("row", "pow2")):
            prints = ", ".join(show(dtype, granularity, scale_type, (x, x.t().contiguous())))
            print(f"{{DType::{name}, per::{granularity}, ScaleType::{scale_type}, {{{prints}}}}},")


if __name__ == "__main__":
    main()
