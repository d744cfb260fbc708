#!/usr/bin/env python3
"""Writes tests/golden/ops/te_references.txt, which tests/ops/te_references_test.cpp reads: what
TransformerEngine's own references compute.

Called with a clone of TransformerEngine, which is read as its HEAD has it, by a Python that has
torch and numpy (made with torch 2.15 from commit d0067d0).

  cast SOURCE INPUT FORMAT GRANULARITY SCALE CODES SCALES ...
      fingerprints (FNV-1a) of codes and of scales: fp32 factors that read the codes, or E8M0 bytes;
      a second pair is that of the transposed matrix. Of blocks with an amax that is not finite both
      are taken as zero
  delayed LENGTH ALGORITHM MARGIN FORMAT
      a run of delayed scaling of one slot; then, for each update,
  update AMAX SCALE SKIPPED HISTORY
      the scale after _amax_and_scale_update of pytorch/quantization.py, called in every update; the
      same where it is called only in updates whose amax is finite and not 0, and then the
      fingerprint of its history

SOURCE is `blockwise` (tests/pytorch/references/blockwise_quantizer_reference.py), `current`
(ref_per_tensor_cs.py), both run as they are, or `mxfp8`: compute_ref of
tests/cpp/operator/test_cast_mxfp8.cu with float_to_e8m0 and exp2f_rcp of tests/cpp/test_common.h,
restated here in NumPy.

_amax_and_scale_update gets the format's maximum as a tensor: of a Python number torch makes
`number * reciprocal(amax)`, which is rounded twice and often one unit in the last place away from
the quotient that TransformerEngine's kernel (common/recipe/delayed_scaling.cu) computes.
"""

import ast
import pathlib
import subprocess
import sys
import types

import numpy as np
import torch

from cast_inputs import adversarial, as_torch, fingerprint, spread, words

HERE = pathlib.Path(__file__).resolve().parent
TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def text_of(path):
    return subprocess.run(
        ["git", "-C", sys.argv[1], "show", f"HEAD:{path}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def module(name, path):
    made = types.ModuleType(name)
    sys.modules[name] = made
    exec(compile(text_of(path), path, "exec"), made.__dict__)
    return made


def functions(path, names, scope):
    """Those functions of a file that needs compiled modules as a whole; decorators that
    compile are left out."""
    tree = ast.parse(text_of(path))
    tree.body = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    for node in tree.body:
        node.decorator_list = []
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
    exec(compile(tree, path, "exec"), scope)
    return scope


def load():
    sys.modules["transformer_engine"] = types.ModuleType("transformer_engine")
    pytorch = types.ModuleType("transformer_engine.pytorch")
    pytorch.DType = types.SimpleNamespace(kFloat8E4M3="e4m3", kFloat8E5M2="e5m2")
    constants = types.ModuleType("transformer_engine.pytorch.constants")
    constants.TE_DType_To_Torch = TORCH
    sys.modules["transformer_engine.pytorch"] = pytorch
    sys.modules["transformer_engine.pytorch.constants"] = constants
    sys.modules["references"] = types.ModuleType("references")
    folder = "tests/pytorch/references"
    module("references.quantize_scale_calc", f"{folder}/quantize_scale_calc.py")
    current = module(
        "references.ref_per_tensor_cs", f"{folder}/ref_per_tensor_cs.py"
    ).ref_per_tensor_cs_cast
    blockwise = module(
        "references.blockwise_quantizer_reference", f"{folder}/blockwise_quantizer_reference.py"
    ).BlockwiseQuantizerReference()
    names = [
        "_update_amax_history", "_default_get_amax_and_update_history", "_default_sf_compute",
        "_compute_amax_and_update_history", "_compute_scaling_factor", "_amax_and_scale_update",
    ]  # fmt: skip
    scope = functions("transformer_engine/pytorch/quantization.py", names, {"torch": torch})
    return current, blockwise, scope["_amax_and_scale_update"]


def prints(codes, scales):
    return f"{fingerprint(codes.tobytes())} {fingerprint(scales.tobytes())}"


def bytes_of(codes):
    return codes.contiguous().view(torch.uint8).numpy().copy()


def finite_blocks(x, height, width):
    """Whether all values of each block are finite, and the same for each element."""
    rows, columns = x.shape
    padded = np.zeros((-(-rows // height) * height, -(-columns // width) * width), dtype=bool)
    padded[:rows, :columns] = ~np.isfinite(x)
    bad = padded.reshape(padded.shape[0] // height, height, -1, width).any(axis=(1, 3))
    return ~bad, ~np.repeat(np.repeat(bad, height, 0), width, 1)[:rows, :columns]


def masked(codes, scales, x, height, width):
    blocks, elements = finite_blocks(x.float().numpy(), height, width)
    return prints(
        np.where(elements, codes, 0).astype(np.uint8),
        np.where(blocks, scales, 0).astype(scales.dtype),
    )


def block_cast(reference, x, name, tile, pow2):
    got = reference.quantize(
        x, TORCH[name], quant_tile_shape=tile, pow_2_scales=pow2, munge_scale_shapes=False
    )
    return masked(bytes_of(got.data), got.scale.float().numpy(), x, *tile)


def encode(values, name):
    """static_cast to an FP8 type of CUDA: to nearest, saturating."""
    limit = torch.finfo(TORCH[name]).max
    return bytes_of(torch.from_numpy(values).clamp(-limit, limit).to(TORCH[name]))


def mxfp8_cast(x, name, height):
    """Blocks of height x 32, along rows."""
    values = x.float().numpy()
    rows, columns = values.shape
    blocks = np.abs(values).reshape(rows // height, height, columns // 32, 32)
    with np.errstate(all="ignore"):
        product = (blocks.max(axis=(1, 3)) * np.float32(1.0 / torch.finfo(TORCH[name]).max)).astype(
            np.float32
        )
    bits = product.view(np.uint32)
    exponent, mantissa = (bits >> 23).astype(np.int64), bits & 0x7FFFFF
    up = (mantissa > 0) & (exponent != 0xFE) & ~((exponent == 0) & (mantissa <= 0x400000))
    exponent = np.where(product == 0, 0, exponent + up)
    reading = (
        np.where(exponent == 254, np.uint32(0x00400000), ((254 - exponent) << 23).astype(np.uint32))
        .astype(np.uint32)
        .view(np.float32)
    )
    scaled = values * np.repeat(np.repeat(reading, height, 0), 32, 1)
    return masked(encode(scaled.astype(np.float32), name), exponent.astype(np.uint8), x, height, 32)


def inputs():
    """name, bits, whether all is finite."""
    yield "spread.256.384", spread(256, 384), True
    yield "adversarial.136.160.01234567", adversarial(136, 160, list(range(8))), True
    yield "adversarial.136.160.0234567", adversarial(136, 160, [0, 2, 3, 4, 5, 6, 7]), True
    yield "adversarial.160.256.01234567", adversarial(160, 256, list(range(8))), True
    yield "adversarial.160.256.0123456789", adversarial(160, 256, list(range(10))), False


def casts(current, blockwise):
    for input_name, bits, finite in inputs():
        x = as_torch(bits)
        both = (x, as_torch(np.ascontiguousarray(bits.T)))
        for name in TORCH:
            for pow2, scale in ((False, "fp32"), (True, "pow2")):
                if finite:
                    codes, scale_inv, _, _ = current(x, name, force_pow_2_scales=pow2)
                    yield (
                        f"cast current {input_name} {name} tensor {scale} "
                        f"{prints(bytes_of(codes), scale_inv.numpy())}"
                    )
                for granularity, tile in (("1x128", (1, 128)), ("128x128", (128, 128))):
                    results = " ".join(
                        block_cast(blockwise, each, name, tile, pow2) for each in both
                    )
                    yield f"cast blockwise {input_name} {name} {granularity} {scale} {results}"
            results = " ".join(
                mxfp8_cast(each, name, 1) for each in both if each.shape[1] % 32 == 0
            )
            yield f"cast mxfp8 {input_name} {name} 1x32 e8m0 {results}"


def amaxes(count, seed):
    """Ordinary values, with zeros, infinities, NaN and values whose quotient
    overflows at random places."""
    values = list(words(count + seed))[seed:]
    for w in values:
        special = {0: 0.0, 1: np.inf, 2: np.nan, 3: 1e-42}
        yield np.float32(special.get(w % 24, np.ldexp(1 + (w >> 8) / 256, w % 40 - 20)))


def delayed(update):
    bits = lambda value: f"{np.float32(value).view(np.uint32):08x}"
    runs = [
        (1, "max", 0, "e4m3"), (4, "max", 1, "e5m2"), (4, "most_recent", 0, "e4m3"),
        (16, "max", 0, "e4m3"), (16, "most_recent", 2, "e5m2"), (40, "max", 0, "e5m2"),
    ]
    for seed, (length, algorithm, margin, name) in enumerate(runs):
        recipe = types.SimpleNamespace(
            amax_compute_algo=algorithm, scaling_factor_compute_algo=None, margin=margin
        )
        largest = torch.tensor(torch.finfo(TORCH[name]).max)
        every = torch.zeros(length, 1), torch.ones(1)
        skipping = torch.zeros(length, 1), torch.ones(1)
        yield f"delayed {length} {algorithm} {margin} {name}"
        for amax in amaxes(160, 200 * seed):
            for history, scale in (every, skipping) if np.isfinite(amax) and amax > 0 else (every,):
                history[0, 0] = float(amax)
                update(history, scale, largest, recipe)
            rows = skipping[0][1:].numpy().tobytes()
            yield (
                f"update {bits(amax)} {bits(every[1].item())} {bits(skipping[1].item())} "
                f"{fingerprint(rows)}"
            )


def main():
    current, blockwise, update = load()
    lines = [*casts(current, blockwise), *delayed(update)]
    (HERE / "ops" / "te_references.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
