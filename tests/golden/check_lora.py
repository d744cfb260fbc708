#!/usr/bin/env python3
"""Trains adapters with fp8train and opens what it writes with peft and transformers.

  check_lora.py PROGRAM

  peft     a run's adapters, exported with --to peft, on their base: the logits of the same run,
           exported with --merge and opened in transformers, in fp32
  fp8      a folder of codes as compressed-tensors (a scale for each weight or row) and as
           DeepSeek's (blocks of 128x128) is the frozen base of a run; its export with --merge in
           bf16 opens in transformers, and its logits are those of base values + adapters, which
           torch adds in fp32 and rounds once to bf16

Needs torch, transformers, peft, compressed-tensors and safetensors; the tests do not.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    LlamaConfig,
    LlamaForCausalLM,
)

TOKENS = torch.randint(0, 250, (2, 48), generator=torch.Generator().manual_seed(3))


def logits(model):
    with torch.no_grad():
        return model.float().eval()(TOKENS).logits.double()


def distance(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def make_base(folder):
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=272, hidden_size=256, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        initializer_range=0.1, tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def train(program, base, out, *more):
    subprocess.run(
        [
            program, f"model.from={base}", "model.lora.rank=8", "model.lora.alpha=16",
            "model.lora.targets=all-linear", "data.train=README.md", "data.tokenizer=byte",
            "data.seq_length=64", "training.micro_batch_size=4", "training.max_steps=30",
            "optimizer.lr=3e-3", "device=cpu", f"output_dir={out}", *more,
        ],
        check=True, stdout=subprocess.DEVNULL,
    )


def export(program, run, out, *more):
    subprocess.run(
        [program, "export", run, "--out", out, *more], check=True, stdout=subprocess.DEVNULL
    )


def check_peft(program, folder):
    base = folder / "base"
    make_base(base)
    train(program, base, folder / "run", "precision.plan=te-current")
    export(program, folder / "run", folder / "adapter", "--to", "peft")
    export(program, folder / "run", folder / "merged", "--merge")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = logits(plain)
    adapted = logits(PeftModel.from_pretrained(plain, folder / "adapter"))
    merged = logits(AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32))
    print(f"peft: merged {distance(merged, adapted):.1e}, base {distance(before, adapted):.1e}")
    assert distance(merged, adapted) < 1e-5


def codes_folder(kind, base, folder):
    """Writes the base with codes and returns the values that they stand for."""
    state = load_file(base / "model.safetensors")
    config = json.loads((base / "config.json").read_text())
    values, stored = {}, {}
    preset = preset_name_to_scheme("FP8_DYNAMIC", ["Linear"])
    for name, weight in state.items():
        if "_proj" not in name:
            values[name] = stored[name] = weight
            continue
        if kind == "fp8":  # transformers: integrations/finegrained_fp8.py
            rows, columns = weight.shape
            blocks = weight.float().view(rows // 128, 128, columns // 128, 128)
            scale = blocks.abs().amax(dim=(1, 3)) / 448.0
            codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            values[name] = (codes.float() * scale[:, None, :, None]).view(rows, columns)
            stored[name] = codes.view(rows, columns)
            stored[name + "_scale_inv"] = scale
            continue
        args = preset.weights.model_copy(update={"strategy": kind})
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        amax = weight.float().abs().amax(dim=1, keepdim=True)
        amax = amax if kind == "channel" else amax.max().reshape(1)
        scale, zero = calculate_qparams(-amax, amax, args)
        compressor = BaseCompressor.get_value_from_registry("float-quantized")
        packed = compressor.compress(
            {"weight": weight.float(), "weight_scale": scale, "weight_zero_point": zero}, scheme
        )
        values[name] = compressor.decompress(dict(packed), scheme)["weight"].float()
        for key in ("weight", "weight_scale"):
            stored[name.removesuffix("weight") + key] = packed[key]
    folder.mkdir()
    if kind == "fp8":
        quantization = dict(quant_method="fp8", fmt="e4m3", weight_block_size=[128, 128])
    else:
        group = dict(
            targets=["Linear"],
            weights=json.loads(args.model_dump_json()),
        )
        quantization = dict(
            quant_method="compressed-tensors", format="float-quantized", ignore=["lm_head"],
            quantization_status="compressed", config_groups=dict(group_0=group),
        )
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(
        {k: v.contiguous() for k, v in stored.items()}, folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return values


def check_codes(program, folder, kind, plan):
    values = codes_folder(kind, folder / "base", folder / kind)
    reads = (
        FineGrainedFP8Config(dequantize=True)
        if kind == "fp8"
        else CompressedTensorsConfig(run_compressed=False)
    )
    opened = AutoModelForCausalLM.from_pretrained(
        folder / kind, dtype=torch.float32, quantization_config=reads
    )
    for name, value in opened.state_dict().items():
        assert name not in values or distance(value.float(), values[name].float()) < 1e-6, name
    run = folder / f"run-{kind}"
    train(program, folder / kind, run, f"precision.plan={plan}")
    export(program, run, folder / f"merged-{kind}", "--merge", "--dtype", "bf16")
    export(program, run, folder / f"adapter-{kind}", "--to", "peft")
    merged = AutoModelForCausalLM.from_pretrained(
        folder / f"merged-{kind}", dtype=torch.bfloat16
    )
    adapter = load_file(folder / f"adapter-{kind}/adapter_model.safetensors")
    state, once = {}, {}
    for name, value in values.items():
        module = "base_model.model." + name.removesuffix(".weight")
        value = value.float()
        if module + ".lora_A.weight" in adapter:
            a, b = adapter[module + ".lora_A.weight"], adapter[module + ".lora_B.weight"]
            value = value + 2.0 * (b.double() @ a.double()).float()
        state[name] = value
        once[name] = value.to(torch.bfloat16)
    stored = merged.state_dict()
    beyond = max(
        ((stored[name].float() - state[name]).abs() / state[name].abs().clamp_min(1e-30)).max()
        for name in state
    ).item()
    differ = sum((stored[name] != once[name]).sum().item() for name in once)
    exact = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    exact.load_state_dict({name: value.float() for name, value in once.items()})
    print(
        f"{kind} under {plan}: weights within {beyond:.2e} of the exact ones (a bf16 rounding is "
        f"{2**-8:.2e}), {differ} differ from torch's rounding, whose logits differ "
        f"by {distance(logits(merged), logits(exact)):.1e}"
    )
    assert beyond <= 2**-8


if __name__ == "__main__":
    program = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name)
        check_peft(program, out)
        check_codes(program, out, "fp8", "deepseek-v3")
        check_codes(program, out, "tensor", "te-current")
        check_codes(program, out, "channel", "torchao-rowwise")
