#!/usr/bin/env python3
"""Opens what `fp8train export` writes with the programs that it is for, and compares.

    python check_exports.py PROGRAM

For each family in tests/golden/families:
  hf     fp32, bf16 and fp16 in transformers: the class that went in, no missing and no unexpected
         tensor, the weights' bits, logits
  fp8    fp8-block and fp8-tensor in transformers (FineGrainedFP8 and compressed-tensors): the same,
         weights against code * scale, and how far logits are from those of the bf16 folder
  fp4    nvfp4 and mxfp4 the same, of a model whose rows are whole blocks; weights against those
         that `fp8train quantize --dequantize` writes
  gguf   every type in gguf's GGUFReader: the values of each tensor, dequantized by gguf, against
         the weights

Needs torch, transformers, compressed-tensors, accelerate, gguf and safetensors; the tests do not.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors import safe_open

FAMILIES = pathlib.Path(__file__).parent / "families"
CASES = [
    "llama-llama3", "llama-bias-linear", "mistral", "qwen2", "qwen2-yarn-sharded", "qwen3", "gpt2",
]
TOKENS = torch.tensor([[1, 7, 3, 12, 30, 22, 5, 9, 17, 2, 4, 8]])


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != "expected.safetensors":
            with safe_open(path, framework="pt") as file:
                found.update({name: file.get_tensor(name) for name in file.keys()})
    return found


def opened(folder, **options):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **options
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[what], (folder, what, report[what])
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits.double()


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def expanded(scale, shape, block):
    if block is None:
        return scale.reshape(-1, 1) if scale.numel() > 1 else scale
    return scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[
        : shape[0], : shape[1]
    ]


def check_plain(program, case, out):
    source = opened(FAMILIES / case, dtype=torch.float32)
    want = logits(source)
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        folder = out / f"{case}-{kind}"
        subprocess.run(
            [program, "export", FAMILIES / case, "--out", folder, "--dtype", kind],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        model = opened(folder, dtype=torch.float32)
        assert type(model) is type(source)
        originals = tensors_of(FAMILIES / case)
        for name, values in tensors_of(folder).items():
            assert values.dtype == dtype and torch.equal(values, originals[name].to(dtype)), (
                case,
                kind,
                name,
            )
        print(
            f"{case!s:20.20} {kind:10} {type(model).__name__}, logits differ by "
            f"{distance(logits(model), want):.1e}"
        )


def check_fp8(program, case, out):
    want = logits(opened(FAMILIES / case, dtype=torch.float32))
    for kind in ("fp8-block", "fp8-tensor"):
        folder = out / f"{case}-{kind}"
        subprocess.run(
            [program, "export", FAMILIES / case, "--out", folder, "--dtype", kind],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        config = json.loads((folder / "config.json").read_text())["quantization_config"]
        options = (
            dict(quantization_config=transformers.FineGrainedFP8Config(dequantize=True))
            if kind == "fp8-block"
            else {}
        )
        if kind == "fp8-tensor":
            options = dict(
                quantization_config=transformers.CompressedTensorsConfig(run_compressed=False)
            )
        model = opened(folder, dtype=torch.bfloat16, **options)
        stored = tensors_of(folder)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model = model.float()
        suffix, block = (
            ("_scale_inv", config["weight_block_size"]) if kind == "fp8-block" else ("_scale", None)
        )
        equal = 0
        for name in [n for n in stored if stored[n].dtype == torch.float8_e4m3fn]:
            value = stored[name].float() * expanded(
                stored[name + suffix], stored[name].shape, block
            )
            assert torch.equal(value.to(state[name].dtype), state[name]), (
                case,
                kind,
                name,
                state[name].dtype,
            )
            equal += 1
        print(
            f"{case!s:20.20} {kind:10} {type(model).__name__}, {equal} weights are code * scale, "
            f"logits differ by {distance(logits(model), want):.1e}"
        )


def check_fp4(program, case, out):
    want = logits(opened(case, dtype=torch.float32))
    for kind, granularity in (("nvfp4", "1x16"), ("mxfp4", "1x32")):
        folder = out / f"{case}-{kind}"
        subprocess.run(
            [program, "export", case, "--out", folder, "--dtype", kind],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        plain = out / f"{case}-{kind}.safetensors"
        subprocess.run(
            [
                program, "quantize", case / "model.safetensors", "--out", plain, "--format", "e2m1",
                "--granularity", granularity, "--dequantize",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        options = dict(
            quantization_config=transformers.CompressedTensorsConfig(run_compressed=False)
        )
        model = opened(folder, dtype=torch.float32, **options).float()
        stored, state = tensors_of(folder), model.state_dict()
        with safe_open(plain, framework="pt") as file:
            names = [n.removesuffix("_packed") for n in stored if n.endswith("_packed")]
            errors = [
                distance(state[name].double(), file.get_tensor(name).double()) for name in names
            ]
        assert names and max(errors) < 3e-3, (case, kind, errors)
        print(
            f"{case!s:20.20} {kind:10} {type(model).__name__}, {len(names)} weights within "
            f"{max(errors):.1e}, logits differ by {distance(logits(model), want):.1e}"
        )


def check_gguf(program, case, out):
    for kind in ("f32", "f16", "bf16", "q8_0"):
        path = out / f"{case}-{kind}.gguf"
        dtype = {"f32": "fp32", "f16": "fp16"}.get(kind, kind)
        subprocess.run(
            [program, "export", FAMILIES / case, "--to", "gguf", "--out", path, "--dtype", dtype],
            check=True,
            capture_output=True,
        )
        reader = gguf.GGUFReader(path)
        config = json.loads((FAMILIES / case / "config.json").read_text())
        architecture = next(
            a
            for a, name in gguf.MODEL_ARCH_NAMES.items()
            if name == reader.fields["general.architecture"].contents()
        )
        names = gguf.get_tensor_name_map(
            architecture, config.get("num_hidden_layers") or config["n_layer"]
        )
        originals = {
            names.get_name(name, try_suffixes=(".weight", ".bias")): (name, values.float().numpy())
            for name, values in tensors_of(FAMILIES / case).items()
        }
        tied = config.get("tie_word_embeddings", config["model_type"] == "gpt2")
        if tied:
            originals.pop("output.weight", None)
        found = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        assert set(found) - {"rope_freqs.weight"} == set(originals), set(found) ^ set(originals)
        worst = 0.0
        for target, (name, values) in originals.items():
            if config["model_type"] == "gpt2" and name.endswith((
                ".c_attn.weight",
                ".c_proj.weight",
                ".c_fc.weight",
            )):
                values = values.T
            heads = {
                "q_proj": config.get("num_attention_heads"),
                "k_proj": config.get("num_key_value_heads"),
            }.get(name.split(".")[-2])
            if config["model_type"] in ("llama", "mistral") and heads:
                values = (
                    values
                    .reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
                    .swapaxes(1, 2)
                    .reshape(values.shape)
                )
            worst = max(
                worst,
                float(
                    np.abs(found[target].reshape(values.shape) - values).max()
                    / np.abs(values).max()
                ),
            )
        assert worst == 0.0 or kind in ("f16", "q8_0")
        print(
            f"{case!s:20.20} gguf {kind:5} {len(found)} tensors, largest difference {worst:.1e} of "
            "the largest weight"
        )


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        wide = pathlib.Path(folder) / "wide"  # several blocks
        torch.manual_seed(1)
        config = transformers.Qwen3Config(
            vocab_size=40,
            hidden_size=256,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=64,
            tie_word_embeddings=False,
        )
        transformers.Qwen3ForCausalLM(config).bfloat16().save_pretrained(wide)
        for name in [*CASES, wide]:
            check_plain(sys.argv[1], name, pathlib.Path(folder))
            if name != "gpt2":
                check_fp8(sys.argv[1], name, pathlib.Path(folder))
            check_gguf(sys.argv[1], name, pathlib.Path(folder))
        check_fp4(sys.argv[1], wide, pathlib.Path(folder))
