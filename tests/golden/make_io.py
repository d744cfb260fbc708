"""Makes the fixtures under tests/golden/io with the reference implementations (safetensors,
transformers, torch).

Usage: python make_io.py
"""

import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

out = pathlib.Path(__file__).parent / "io"


def numbered(count, dtype):
    return (torch.arange(count, dtype=torch.float64) / 8 - 1).to(dtype)


def main():
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    save_file({
        "f64": numbered(5, torch.float64).reshape(5, 1),
        "f32": numbered(6, torch.float32).reshape(2, 3),
        "bf16": numbered(7, torch.bfloat16),
        "f16": numbered(3, torch.float16),
        "e4m3": numbered(4, torch.float8_e4m3fn),
        "i64": torch.tensor([-1, 1 << 40]),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
    }, out / "mixed.safetensors", metadata={"format": "pt", "note": "caf\u00e9 \"q\""})
    # Only types of which there is one per element size: among equals the reference sorts by
    # type, this program by name.
    save_file({
        "w.b": numbered(6, torch.float32).reshape(2, 3),
        "w.a": numbered(2, torch.float32),
        "half": numbered(3, torch.bfloat16),
        "codes": numbered(5, torch.float8_e4m3fn),
    }, out / "written.safetensors", metadata={"format": "pt"})

    llama = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(numbered(parameter.numel(), torch.float32).reshape(parameter.shape))
    model.save_pretrained(out / "llama_sharded", max_shard_size="2KB")
    (out / "llama_sharded" / "generation_config.json").unlink(missing_ok=True)

    scaled = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=128000,
        eos_token_id=[128001, 128009],
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )
    scaled.architectures = ["LlamaForCausalLM"]
    scaled.to_json_file(out / "llama3_config.json", use_diff=False)
    gpt2 = GPT2Config()
    gpt2.architectures = ["GPT2LMHeadModel"]
    gpt2.to_json_file(out / "gpt2_config.json", use_diff=False)
    for path in out.rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True) + "\n")


main()
