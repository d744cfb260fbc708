#!/usr/bin/env python3
"""Writes tests/golden/io/encoded: folders with a weight in codes, made by compressed-tensors' own
compressors, and the values that it reads back.

    python make_encoded.py

Each folder has config.json, model.safetensors and expected.safetensors. Needs torch,
compressed-tensors (0.20) and safetensors; the tests do not.
"""
import json
import pathlib

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parent / "io" / "encoded"
CASES = {
    "fp8-tensor": ("FP8", "float-quantized"),
    "fp8-channel": ("FP8_DYNAMIC", "float-quantized"),
    "fp8-block": ("FP8_BLOCK", "float-quantized"),
    "int8-channel": ("W8A8", "int-quantized"),
    "nvfp4": ("NVFP4A16", "nvfp4-pack-quantized"),
    "mxfp4": ("MXFP4A16", "mxfp4-pack-quantized"),
    "mxfp8": ("MXFP8A16", "mxfp8-quantized"),
}


def groups(weight, args):
    """The values that share a scale, last."""
    rows, columns = weight.shape
    if args.strategy == "tensor":
        return weight.reshape(1, -1)
    if args.strategy == "channel":
        return weight.unsqueeze(-2)
    if args.strategy == "block":
        height, width = args.block_structure
        blocks = weight.reshape(rows // height, height, columns // width, width)
        return blocks.transpose(1, 2).flatten(2)
    return weight.reshape(rows, columns // args.group_size, args.group_size)


def main():
    torch.manual_seed(7)
    for name, (preset, form) in CASES.items():
        scheme: QuantizationScheme = preset_name_to_scheme(preset, ["Linear"])
        args = scheme.weights
        if args.strategy == "block":
            args.block_structure = [8, 32]
        weight = torch.randn(24, 64) * torch.exp2(torch.randint(-4, 4, (24, 1)))
        parts = groups(weight, args)
        state = {"weight": weight}
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = generate_gparam(weight.min(), weight.max())
        scale, zero = calculate_qparams(
            parts.amin(-1), parts.amax(-1), args, state.get("weight_global_scale")
        )
        state["weight_scale"] = scale.reshape(-1, 1) if args.strategy == "channel" else scale
        compressor = BaseCompressor.get_value_from_registry(form)
        compressed = compressor.compress(state, scheme)
        read = compressor.decompress(compressed, scheme)["weight"]
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": form,
                "config_groups": {"group_0": scheme.model_dump(mode="json")},
            }
        }
        (folder / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n")
        save_file(
            {f"layer.{k}": v.contiguous() for k, v in compressed.items()},
            folder / "model.safetensors",
        )
        save_file({"layer.weight": read.float().contiguous()}, folder / "expected.safetensors")
        error = float((read.float() - weight).norm() / weight.norm())
        print(name, {k: (tuple(v.shape), v.dtype) for k, v in compressed.items()}, error)


if __name__ == "__main__":
    main()
