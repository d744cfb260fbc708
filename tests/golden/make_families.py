#!/usr/bin/env python3
"""Fixtures of every model family from transformers: tiny models with random weights, and what
transformers computes of them.

Writes, for each name in CASES, tests/golden/families/NAME with
  config.json, model*.safetensors   as transformers saves them (weights in bf16, so that both sides
                                    read the same numbers)
  expected.safetensors              tokens (int32 [T]), logits (fp32 [T, V]), computed in fp64
  expected.json                     loss of predicting tokens[1:] (fp64); of each parameter's
                                    gradient the norm and the dot product with cos(i)

    python make_families.py [--spelling-4 PYTHON]

--spelling-4: a Python that has transformers 4; it writes config.json of SPELLED_4 as that
version spells it, and its logits are compared. Needs torch, transformers 5 and safetensors;
neither the build nor the tests do.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parent / "families"
LENGTH = 24
SIZES = dict(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.2,
)
GPT2_SIZES = dict(
    vocab_size=40,
    n_positions=32,
    n_embd=32,
    n_layer=2,
    n_head=4,
    bos_token_id=0,
    eos_token_id=0,
    initializer_range=0.2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)


def rope(rope_type, **fields):
    return dict(rope_parameters=dict(rope_type=rope_type, rope_theta=100.0, **fields))


YARN = dict(factor=4.0, original_max_position_embeddings=16)
CASES = {
    "llama-bias-linear": (
        "Llama",
        dict(attention_bias=True, mlp_bias=True, **rope("linear", factor=3.0)),
    ),
    "llama-llama3": (
        "Llama",
        dict(
            tie_word_embeddings=True,
            **rope(
                "llama3",
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        ),
    ),
    "llama-yarn": (
        "Llama",
        dict(
            **rope(
                "yarn", beta_fast=6.0, beta_slow=0.5, attention_factor=1.3, truncate=False, **YARN
            )
        ),
    ),
    "llama-dynamic": ("Llama", dict(tie_word_embeddings=True, **rope("dynamic", factor=2.0))),
    "mistral": ("Mistral", dict(head_dim=16, sliding_window=None, **rope("default"))),
    "mistral-window": (
        "Mistral",
        dict(tie_word_embeddings=True, sliding_window=64, **rope("default")),
    ),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True, use_sliding_window=False, **rope("default"))),
    "qwen2-yarn-sharded": ("Qwen2", dict(**rope("yarn", **YARN))),
    "qwen3": ("Qwen3", dict(head_dim=16, tie_word_embeddings=True, **rope("default"))),
    "qwen3-bias-yarn": (
        "Qwen3",
        dict(
            head_dim=16, attention_bias=True, **rope("yarn", mscale=1.5, mscale_all_dim=0.5, **YARN)
        ),
    ),
    "gpt2": ("GPT2", GPT2_SIZES),
    "gpt2-untied": ("GPT2", dict(tie_word_embeddings=False, **GPT2_SIZES)),
}
SPELLED_4 = ["qwen2-yarn-sharded", "llama-bias-linear", "mistral-window"]

WITH_4 = """
import sys, json, pathlib, torch, transformers
folder = pathlib.Path(sys.argv[1])
transformers.utils.logging.set_verbosity_error()
assert transformers.__version__.startswith("4.")
model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
model = model.double().eval()
tokens = torch.tensor(json.loads(sys.argv[2]))
with torch.no_grad():
    print(json.dumps(model(tokens[None]).logits[0].tolist()))
model.config.save_pretrained(folder)
"""


def build(name):
    """The model, its parameters rounded to bf16."""
    kind, fields = CASES[name]
    torch.manual_seed(1234 + list(CASES).index(name))
    config = getattr(transformers, kind + "Config")(
        **(fields if kind == "GPT2" else {**SIZES, **fields})
    )
    config._attn_implementation = "eager"
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else kind + "ForCausalLM")(
        config
    )
    with torch.no_grad():
        for parameter in model.parameters():
            # gains and biases away from their defaults, so that a mix-up cannot hide
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            parameter.copy_(parameter.bfloat16().float())
    return model


def gradients(model):
    result = {}
    for name, parameter in model.named_parameters():
        flat = parameter.grad.double().flatten()
        waves = torch.cos(torch.arange(flat.numel(), dtype=torch.float64))
        result[name] = dict(norm=flat.norm().item(), dot=(flat * waves).sum().item())
    return result


def respell(python, folder, tokens, logits):
    """config.json as transformers 4 writes it, if it computes the same from it."""
    before = json.loads((folder / "config.json").read_text())
    rope_4 = dict(before.pop("rope_parameters"))
    before["rope_theta"] = rope_4.pop("rope_theta")
    if rope_4["rope_type"] != "default":
        before["rope_scaling"] = rope_4
    (folder / "config.json").write_text(json.dumps(before))
    out = subprocess.run(
        [python, "-c", WITH_4, str(folder), json.dumps(tokens.tolist())],
        check=True,
        capture_output=True,
        text=True,
    )
    other = torch.tensor(json.loads(out.stdout.strip().splitlines()[-1]), dtype=torch.float64)
    print(f"  transformers 4 differs by {(other - logits).abs().max() / logits.abs().max():.1e}")
    assert "rope_parameters" not in json.loads((folder / "config.json").read_text())


def make(name, python_4):
    folder = OUT / name
    folder.mkdir(parents=True)
    model = build(name)
    model.bfloat16().save_pretrained(folder, max_shard_size="20KB" if "sharded" in name else "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = build(name).double().eval()
    tokens = torch.randint(
        0, SIZES["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(7)
    )
    logits = model(tokens[None]).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[1:])
    loss.backward()
    save_file(
        {"tokens": tokens.int(), "logits": logits.detach().float()}, folder / "expected.safetensors"
    )
    expected = dict(architecture=type(model).__name__, loss=loss.item(), gradients=gradients(model))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    if python_4 and name in SPELLED_4:
        respell(python_4, folder, tokens, logits.detach())
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spelling-4", metavar="PYTHON")
    arguments = parser.parse_args()
    if not transformers.__version__.startswith("5."):
        sys.exit("transformers 5 is needed")
    shutil.rmtree(OUT, ignore_errors=True)
    for name in CASES:
        make(name, arguments.spelling_4)


if __name__ == "__main__":
    main()
