"""Makes tests/golden/nn/torchao_linears.bin: what torchao's float8 linear layers compute, for
tests/nn/linear_blockwise_test.cpp.

Run with a Python that has torch and torchao (made with torch 2.15, torchao 0.18). For each of
the recipes tensorwise, rowwise and rowwise_with_gw_hp, in emulate mode, and each of the
shapes: y, dx and dw as bf16, of which the first 64 columns are stored and, of 4096 rows, every
32nd. x, w and dy are bf16 values from a linear congruential generator with the seeds 1, 2 and
3, the same as in the test.
"""

import dataclasses
import logging
from pathlib import Path

import numpy
import torch

logging.disable(logging.WARNING)

from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: E402

# Rows, inputs, outputs.
SHAPES = [(32, 48, 64), (48, 4096, 32), (4096, 64, 16), (16, 32, 4096)]
COLUMNS = 64  # of all results
ROW_STEP = {False: 1, True: 32}  # every 32nd row of 4096


def values(rows, columns, seed):
    bits = numpy.empty(rows * columns, dtype=numpy.uint16)
    state = seed
    for i in range(bits.size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        word = state >> 16
        bits[i] = (word & 0x807F) | ((120 + (word >> 7) % 8) << 7)
    return torch.from_numpy(bits.view(numpy.int16)).view(torch.bfloat16).reshape(rows, columns)


def run(recipe, rows, inputs, outputs):
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    model = torch.nn.Sequential(torch.nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16))
    model = convert_to_float8_training(model, config=config)
    model[0].weight.data.copy_(values(outputs, inputs, 2))
    x = values(rows, inputs, 1).requires_grad_()
    y = model(x)
    y.backward(values(rows, outputs, 3))
    return [y[:, :COLUMNS], x.grad[:, :COLUMNS], model[0].weight.grad[:, :COLUMNS]]


def main():
    results = []
    for recipe in ["tensorwise", "rowwise", "rowwise_with_gw_hp"]:
        for shape in SHAPES:
            for tensor in run(recipe, *shape):
                results.append(
                    tensor
                    .detach()
                    .contiguous()
                    .view(torch.int16)
                    .numpy()[:: ROW_STEP[tensor.shape[0] >= 4096]]
                    .tobytes()
                )
    path = Path(__file__).parent / "nn/torchao_linears.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(results))


if __name__ == "__main__":
    main()
