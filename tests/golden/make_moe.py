#!/usr/bin/env python3
"""Fixtures of the families with experts from transformers: tiny models with random weights, and
what transformers computes of them.

Writes, for each name in CASES, tests/golden/moe/NAME with
  config.json, model.safetensors    as transformers saves them, in fp32
  fused.safetensors                 the same with the experts of a block in one tensor, as
                                    transformers saves them with save_original_format=False
  expected.safetensors              tokens (int32 [T]), logits (fp32 [T, V]) and each gradient of
                                    the loss of predicting tokens[1:], named as in
                                    model.safetensors; all computed in fp64
  expected.json                     architecture, loss

Needs torch, transformers 5 and safetensors; neither the build nor the tests do.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

OUT = pathlib.Path(__file__).parent / "moe"
LENGTH = 24
SIZES = dict(
    vocab_size=24,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    initializer_range=0.3,
)
CASES = {
    "mixtral": ("Mixtral", dict(num_local_experts=4, intermediate_size=12)),
    "qwen3-moe": (
        "Qwen3Moe",
        dict(
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=8,
            norm_topk_prob=True,
            mlp_only_layers=[0],
        ),
    ),
    "qwen3-moe-plain": (
        "Qwen3Moe",
        dict(num_experts=4, num_experts_per_tok=1, moe_intermediate_size=8, attention_bias=True),
    ),
    "dots1": (
        "Dots1",
        dict(
            n_routed_experts=8,
            n_shared_experts=2,
            num_experts_per_tok=3,
            moe_intermediate_size=8,
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            first_k_dense_replace=1,
        ),
    ),
}


def build(name):
    kind, fields = CASES[name]
    torch.manual_seed(4321 + list(CASES).index(name))
    config = getattr(transformers, kind + "Config")(**{**SIZES, **fields})
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(config)
    with torch.no_grad():
        # gains, biases and routers away from their defaults, so that a mix-up cannot hide
        for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "rotary" in tensor_name:
                continue
            if tensor.dim() == 1:
                tensor.add_(0.2 * torch.randn_like(tensor))
            elif tensor_name.endswith("gate.weight"):
                tensor.copy_(0.5 * torch.randn_like(tensor))
    return model


def save(model, folder):
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as other:
        model.save_pretrained(other, save_original_format=False)
        shutil.copy(pathlib.Path(other) / "model.safetensors", folder / "fused.safetensors")


def gradients(model, folder):
    """Those of the files' tensors: transformers saves the gradients as it saves the weights."""
    result = {name: p.grad.float() for name, p in model.named_parameters()}
    other = build(folder.name)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(result[name])
        for name, buffer in other.named_buffers():
            buffer.zero_()
    with tempfile.TemporaryDirectory() as temporary:
        other.save_pretrained(temporary)
        saved = load_file(pathlib.Path(temporary) / "model.safetensors")
    return {"grad." + name: values for name, values in saved.items()}


def make(name):
    folder = OUT / name
    folder.mkdir(parents=True)
    save(build(name), folder)
    model = build(name).double().eval()
    tokens = torch.randint(
        0, SIZES["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(7)
    )
    logits = model(tokens[None]).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[1:])
    loss.backward()
    save_file(
        {
            "tokens": tokens.int(),
            "logits": logits.detach().float(),
            **gradients(model, folder),
        },
        folder / "expected.safetensors",
    )
    expected = dict(architecture=type(model).__name__, loss=loss.item())
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, loss {loss.item():.6f}")


def main():
    if not transformers.__version__.startswith("5."):
        sys.exit("transformers 5 is needed")
    shutil.rmtree(OUT, ignore_errors=True)
    for name in CASES:
        make(name)


if __name__ == "__main__":
    main()
