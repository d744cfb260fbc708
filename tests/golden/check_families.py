#!/usr/bin/env python3
"""Opens with transformers what fp8train writes, and compares names and losses.

    check_families.py PROGRAM [--families NAME,NAME...]

For each fixture of make_families.py, and for each model_type from scratch, PROGRAM trains five
steps and saves a checkpoint. transformers (4 or 5) opens that folder as what its config.json says:
no tensor may be missing or left over, and the loss over the same windows of random tokens has to be
that of `PROGRAM eval` to 1e-6. Prints a line for each; exit code 1 when anything differs.

Needs torch, transformers and safetensors; neither the build nor the tests do.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import torch
import transformers

FIXTURES = pathlib.Path(__file__).parent / "families"
WINDOW, VOCABULARY, TOKENS = 16, 40, 1601
SHAPE = [
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=4",
    "model.max_position_embeddings=64",
    f"model.vocab_size={VOCABULARY}",
    "model.initializer_range=0.2",
]
YARN = "model.rope_scaling={rope_type: yarn, factor: 4, original_max_position_embeddings: 16}"
EXPERTS = ["model.num_experts=4", "model.num_experts_per_tok=2", "moe.capacity_factor=8"]
SCRATCH = {
    "llama": [],
    "llama, qk_norm": ["model.qk_norm=true"],
    "llama, qkv_bias": ["model.qkv_bias=true"],
    "mistral": ["model.num_key_value_heads=2"],
    "qwen2": ["model.num_key_value_heads=2", YARN],
    "qwen3": ["model.num_key_value_heads=2", "model.head_dim=16", YARN],
    "gpt2": [],
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS + ["model.moe_intermediate_size=16", "model.dense_layers=[0]"],
    "dots1": EXPERTS
    + [
        "model.moe_intermediate_size=16",
        "model.n_shared_experts=2",
        "model.n_group=2",
        "model.topk_group=1",
        "model.first_k_dense_replace=1",
    ],
}


def models(names):
    for folder in sorted(path for path in FIXTURES.iterdir() if path.is_dir()):
        if not names or folder.name in names:
            yield f"from {folder.name}", [f"model.from={folder}"]
    for name, settings in SCRATCH.items():
        if not names or name in names:
            yield f"new {name}", SHAPE + [f"model.model_type={name.split(',')[0]}"] + settings


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(str(word) for word in words)}\nexit code {done.returncode}\n{done.stderr}"
        )
    return done.stdout


def train(program, settings, data, folder):
    common = [
        f"data.train=[{{path: {data}, format: raw_u16}}]", "data.tokenizer=none",
        f"data.seq_length={WINDOW}", "training.micro_batch_size=4", "training.max_steps=5",
        "optimizer.lr=0.003", "device=cpu", "precision.plan=fp32", "sample.prompts=[]",
        f"output_dir={folder}",
    ]
    run(
        program,
        "train",
        "-q",
        *[word for setting in settings + common for word in ("--set", setting)],
    )
    return folder / "checkpoints" / "step-000005"


def loss_of(model, tokens):
    """The mean over windows that follow one another, the last one shorter."""
    total, count = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(tokens) - 1, WINDOW):
            window = torch.tensor(tokens[begin : begin + WINDOW + 1])
            logits = model(window[None, :-1]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            count += len(window) - 1
    return total / count


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program")
    parser.add_argument("--families", default="")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}")
    draw = random.Random(3)
    tokens = [draw.randrange(VOCABULARY) for _ in range(TOKENS)]
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        data = root / "tokens.bin"
        data.write_bytes(struct.pack(f"<{TOKENS}H", *tokens))
        for i, (name, settings) in enumerate(
            models([part for part in arguments.families.split(",") if part])
        ):
            folder = train(arguments.program, settings, data, root / str(i))
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder, output_loading_info=True, dtype=torch.float32
            )
            model.config._experts_implementation = "eager"  # the others compute in fp32 only
            theirs = loss_of(model.double().eval(), tokens)
            report = run(
                arguments.program, "eval", "--checkpoint", folder, "--data", data,
                "--tokenizer", "none", "--seq-length", WINDOW, "--json",
            )
            ours = json.loads(report)["loss"]
            difference = abs(ours - theirs) / theirs
            names = {
                kind: len(info[kind])
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
            }
            bad = any(names.values()) or difference > 1e-6
            wrong += bad
            print(
                f"{name}: {type(model).__name__}, missing {names['missing_keys']}, unexpected "
                f"{names['unexpected_keys']}, "
                f"mismatched {names['mismatched_keys']}, loss {ours:.8f}, relative difference "
                f"{difference:.1e}{'  WRONG' if bad else ''}"
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
