#!/usr/bin/env python3
"""Writes tests/golden/ops/nvfp4.txt, which tests/ops/nvfp4_test.cpp reads: what TransformerEngine's
reference of NVFP4 computes.

Called with a clone of TransformerEngine, which is read as its HEAD has it, by a Python that has
torch and numpy (made with torch 2.15 from commit d0067d0).
pytorch/custom_recipes/reference_nvfp4.py runs as it is; what it imports of compiled modules is
replaced by empty classes.

  cast INPUT TILE RHT CODES SCALES AMAX CODES SCALES AMAX
      fingerprints (FNV-1a) of codes and of scales, and the bits of the amax, of the matrix along
      rows and along columns; RHT: the latter goes through the Hadamard transform. Where the amax is
      NaN codes are taken as zero; a code of -0 counts as 0, a NaN has no sign
  option INPUT TILE SCALE BY_ROW CODES SCALES AMAX CODES SCALES AMAX
      the same without a transform, with 4over6 (SCALE is the program's name of its scales), and
      with a scale for each row, where AMAX is the fingerprint of what reads them
  product NAME M N K VALUE ...
      fp32 bits of the product of operands "x" and "w", or transposed, "dy" and "x"; of x with a
      scale for each row "fprop.rows" and "wgrad.rows", of x and w with 4over6 "fprop.4over6"
"""

import enum
import pathlib
import subprocess
import sys
import types

import numpy as np
import torch

from cast_inputs import adversarial, as_torch, fingerprint, spread, words

HERE = pathlib.Path(__file__).resolve().parent


def text_of(path):
    return subprocess.run(
        ["git", "-C", sys.argv[1], "show", f"HEAD:{path}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def module(name, **contents):
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    sys.modules[name] = made
    return made


class Quantizer:
    def __init__(self, *, rowwise, columnwise):
        self.rowwise_usage, self.columnwise_usage = rowwise, columnwise


def load():
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        module(name)
    gemm_type = enum.Enum("GEMMType", "FPROP DGRAD WGRAD")
    gemm = module(
        "transformer_engine.pytorch.custom_recipes.gemm", MMParams=object, GEMMType=gemm_type
    )
    utils = module(
        "transformer_engine.pytorch.custom_recipes.reference_utils",
        Fp4Formats=enum.Enum("Fp4Formats", "E2M1"),
        HIGH_PRECISION_FLOAT_DTYPES=(torch.float32, torch.bfloat16, torch.float16),
    )
    module("transformer_engine.pytorch.custom_recipes", gemm=gemm, reference_utils=utils)
    module(
        "transformer_engine.pytorch.quantized_tensor",
        QuantizedTensorStorage=object,
        Quantizer=Quantizer,
    )
    path = "transformer_engine/pytorch/custom_recipes/reference_nvfp4.py"
    reference = module("reference_nvfp4")
    exec(compile(text_of(path), path, "exec"), reference.__dict__)
    return reference, gemm_type


def narrow(rows, columns):
    """Nine binades: sums of 16 values are exact in fp32, in any order."""
    bits = [(w & 0x807F) | ((120 + (w >> 7) % 9) << 7) for w in words(rows * columns)]
    return np.array(bits, dtype=np.uint16).reshape(rows, columns)


def inputs():
    yield "narrow.160.256", narrow(160, 256), True
    yield "spread.256.384", spread(256, 384), False
    for kinds in ("0", "1", "05", "14567", "01234567", "58", "59"):
        yield (
            f"adversarial.160.256.{kinds}",
            adversarial(160, 256, [int(kind) for kind in kinds]),
            False,
        )


def bits(value):
    return f"{np.float32(value).view(np.uint32):08x}"


def prints(codes, scales, amax):
    packed = codes.numpy().copy()
    if np.isnan(amax):
        packed[:] = 0
    low, high = packed & 0xF, packed >> 4
    packed = np.where(low == 8, 0, low) | np.where(high == 8, 0, high) << 4
    read_by = scales.contiguous().view(torch.uint8).numpy()
    read_by = np.where(read_by == 0xFF, 0x7F, read_by).astype(np.uint8)
    shown = np.float32(np.nan) if np.isnan(amax) else amax
    return (
        f"{fingerprint(packed.astype(np.uint8).tobytes())} {fingerprint(read_by.tobytes())} "
        f"{bits(shown)}"
    )


def quantizer(reference, tile, rht, **options):
    return reference.NVFP4QuantizerRef(
        dtype="e2m1", quant_tile_shape=tile, with_rht=rht, **options
    )


def four_over_six(bound, mode):
    return {
        "nvfp4_use_4over6": True, "nvfp4_e4m3_max": bound, "nvfp4_4over6_err_mode": mode,
    }  # fmt: skip


SCALES = {
    "e4m3": {},
    "e4m3_4over6": four_over_six(256, "MAE"),
    "e4m3_4over6_mse": four_over_six(256, "MSE"),
    "e4m3_4over6_448": four_over_six(448, "MAE"),
    "e4m3_4over6_448_mse": four_over_six(448, "MSE"),
}


def option_prints(codes, scales, amax, scale, by_row):
    if not by_row:
        return prints(codes, scales, amax.item())
    largest = 6.0 * SCALES[scale].get("nvfp4_e4m3_max", 448)
    read_by = (amax / torch.tensor(largest, dtype=torch.float32)).numpy()
    return " ".join([*prints(codes, scales, 0.0).split()[:2], fingerprint(read_by.tobytes())])


def options(reference):
    for name, x, _ in inputs():
        if name.split(".")[-1] in ("58", "59"):  # infinities and NaN
            continue
        for tile in ((1, 16), (16, 16)):
            for scale, of_scale in SCALES.items():
                for by_row in (False, True) if tile == (1, 16) else (False,):
                    if scale == "e4m3" and not by_row:
                        continue
                    maker = quantizer(reference, tile, False, row_scaled_nvfp4=by_row, **of_scale)
                    got = maker.quantize(as_torch(x))
                    rows = option_prints(got.data, got.scale, got.global_amax_row, scale, by_row)
                    columns = option_prints(
                        got.data_t, got.scale_t, got.global_amax_col, scale, by_row
                    )
                    tiles = f"{tile[0]}x{tile[1]}"
                    yield f"option {name} {tiles} {scale} {int(by_row)} {rows} {columns}"


def casts(reference):
    for name, x, exact_sums in inputs():
        for tile in ((1, 16), (16, 16)):
            for rht in (False, True) if exact_sums and tile == (1, 16) else (False,):
                got = quantizer(reference, tile, rht).quantize(as_torch(x))
                rows = prints(got.data, got.scale, got.global_amax_row.item())
                columns = prints(got.data_t, got.scale_t, got.global_amax_col.item())
                yield f"cast {name} {tile[0]}x{tile[1]} {int(rht)} {rows} {columns}"


def product(reference, gemm_type, name, a, b):
    """a b^T of quantized operands, which `a` and `b` give as tile, transform, matrix, whether it is
    contracted along its columns, and options."""
    operands = []
    for tile, rht, matrix, transposed, *of_operand in (a, b):
        maker = quantizer(reference, tile, rht, **(of_operand[0] if of_operand else {}))
        got = maker.quantize(as_torch(matrix))
        operands.append((
            got.data_t if transposed else got.data,
            got.scale_t if transposed else got.scale,
            got,
        ))
    kind = gemm_type.WGRAD if a[3] else gemm_type.FPROP
    (qa, sa, whole_a), (qb, sb, whole_b) = operands
    y = maker.qgemm(
        qa, qb, None, torch.float32, sa, sb, gemm_type=kind, qresult_x=whole_a, qresult_w=whole_b
    ).numpy()
    return f"product {name} {y.shape[0]} {y.shape[1]} {2 * qa.shape[1]} " + " ".join(
        bits(v) for v in y.reshape(-1)
    )


def main():
    reference, gemm_type = load()
    x, w = narrow(64, 32), narrow(16, 32)
    lines = [*casts(reference), *options(reference)]
    lines.append(
        product(
            reference, gemm_type, "fprop", ((1, 16), False, x, False), ((16, 16), False, w, False)
        )
    )
    lines.append(
        product(
            reference, gemm_type, "wgrad", ((1, 16), True, narrow(64, 16), True),
            ((1, 16), True, x, True),
        )
    )
    rows, four = {"row_scaled_nvfp4": True}, SCALES["e4m3_4over6"]
    vector, square = ((1, 16), False), ((16, 16), False)
    for name, of_x, of_w in (("rows", rows, {}), ("4over6", four, four)):
        a, b = (*vector, x, False, of_x), (*square, w, False, of_w)
        lines.append(product(reference, gemm_type, f"fprop.{name}", a, b))
    dy = (*vector, narrow(64, 16), True)
    lines.append(product(reference, gemm_type, "wgrad.rows", dy, (*vector, x, True, rows)))
    (HERE / "ops" / "nvfp4.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
