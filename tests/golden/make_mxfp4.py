#!/usr/bin/env python3
"""Writes tests/golden/ops/mxfp4.txt, which tests/ops/mxfp4_test.cpp reads: what torchao's to_mx
gives for E2M1.

  cast INPUT SCALE CODES SCALES CODES SCALES
      fingerprints (FNV-1a) of codes and of E8M0 scales of the matrix along rows and along columns.
      Codes of a block whose scale is NaN are taken as zero; inputs are those of cast_inputs.py.
      Infinities are left out for RCEIL, whose rule here is TransformerEngine's

Called with a clone of torchao, which is read as its HEAD has it, by a Python that has torch and
numpy (made with torch 2.15 from commit 36027d8).
"""

import pathlib
import sys
import tempfile

import numpy as np
import torch

from cast_inputs import adversarial, as_torch, fingerprint, spread
from source_clones import unpack

HERE = pathlib.Path(__file__).resolve().parent


def inputs():
    yield "spread.256.384", spread(256, 384)
    for kinds in ("0", "1", "2", "3", "4", "6", "7", "01234567", "0123456789"):
        yield f"adversarial.160.256.{kinds}", adversarial(160, 256, [int(kind) for kind in kinds])


def prints(to_mx, x, mode):
    scales, codes = to_mx(x.contiguous(), torch.float4_e2m1fn_x2, 32, mode)
    scales = scales.view(torch.uint8).numpy()
    codes = np.where(np.repeat(scales == 0xFF, 16, axis=1), 0, codes.numpy()).astype(np.uint8)
    return f"{fingerprint(codes.tobytes())} {fingerprint(scales.tobytes())}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        unpack(sys.argv[1], folder, "torchao")
        sys.path.insert(0, folder)
        from torchao.prototype.mx_formats.config import ScaleCalculationMode as Mode
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        lines = []
        for name, bits in inputs():
            x = as_torch(bits)
            for scale, mode in (
                ("e8m0", Mode.RCEIL), ("e8m0_floor", Mode.FLOOR), ("e8m0_even", Mode.EVEN),
            ):  # fmt: skip
                if name.endswith("9") and mode == Mode.RCEIL:
                    continue
                sides = [prints(to_mx, side, mode) for side in (x, x.t())]
                lines.append(" ".join(["cast", name, scale, *sides]))
    (HERE / "ops" / "mxfp4.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
