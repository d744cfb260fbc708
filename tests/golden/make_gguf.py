#!/usr/bin/env python3
"""Fixtures of GGUF files: what llama.cpp's own Python package writes of the models in
tests/golden/families.

Writes, for each name in CASES, tests/golden/io/gguf/NAME.json with
  metadata   key -> [type, value]; of lists [type, count, FNV-1a of the items' bytes]
  tensors    name -> [type, shape with the last extent first, FNV-1a of the bytes]

Keys come from GGUFWriter's methods, names of tensors from gguf's table of Hugging Face names, and
Q8_0 from gguf.quants. Rows of q and k are reordered as LlamaModel.permute of llama.cpp's
convert_hf_to_gguf.py does.

    python make_gguf.py

Needs gguf, safetensors, ml_dtypes and numpy; neither the build nor the tests do.
"""
import json
import pathlib
import tempfile

import gguf
import ml_dtypes  # noqa: F401  (safetensors' bf16 in numpy)
import numpy as np
from safetensors import safe_open

HERE = pathlib.Path(__file__).parent
OUT = HERE / "io" / "gguf"
# name: model folder, tokenizer folder, type
CASES = {
    "llama": ("llama-llama3", "llama3", "f16"),
    "llama-bias": ("llama-bias-linear", "llama2", "f32"),
    "mistral": ("mistral", "tekken", "q8_0"),
    "qwen2": ("qwen2-yarn-sharded", "qwen2", "bf16"),
    "qwen3": ("qwen3", None, "q8_0"),
    "gpt2": ("gpt2", "gpt2", "f16"),
}
ARCHITECTURES = {
    "llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "gpt2": "GPT2",
}
PRE = {
    "llama3": "llama-bpe", "llama2": "default", "tekken": "tekken", "qwen2": "qwen2",
    "gpt2": "gpt-2",
}
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


def fnv(data, state=14695981039346656037):
    for byte in bytes(data):
        state = ((state ^ byte) * 1099511628211) % 2**64
    return state


def weights(folder):
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                tensors[name] = np.asarray(file.get_tensor(name)).astype(np.float32)
    return tensors


def permute(values, heads):
    return (
        values
        .reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        .swapaxes(1, 2)
        .reshape(values.shape)
    )


def add_sizes(writer, config, kind):
    if kind == "gpt2":
        writer.add_vocab_size(config["vocab_size"])
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_block_count(config["n_layer"])
        writer.add_feed_forward_length(4 * config["n_embd"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    rope = config.get("rope_parameters") or config["rope_scaling"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta")))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def llama3_factors(config):
    """As LlamaModel.generate_extra_tensors of convert_hf_to_gguf.py."""
    rope = config["rope_parameters"]
    dim = config["head_dim"]
    frequencies = 1.0 / (rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float64) / dim))
    context = rope["original_max_position_embeddings"]
    low, high = context / rope["low_freq_factor"], context / rope["high_freq_factor"]
    factors = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (context / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def add_tokenizer(writer, folder, size):
    if folder is None:
        writer.add_tokenizer_model("none")
        return
    document = json.loads((HERE / "tokenizers" / folder / "tokenizer.json").read_text())
    model = document["model"]
    scored = model["byte_fallback"]
    tokens, types = [f"[PAD{i}]" for i in range(size)], [gguf.TokenType.UNUSED] * size
    for text, number in model["vocab"].items():
        tokens[number] = text
        types[number] = (
            gguf.TokenType.BYTE if scored and text.startswith("<0x") else gguf.TokenType.NORMAL
        )
    for added in document["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = (
            gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        )
        if scored and added["content"] == model["unk_token"]:
            types[added["id"]] = gguf.TokenType.UNKNOWN
            writer.add_unk_token_id(added["id"])
    writer.add_tokenizer_model("llama" if scored else "gpt2")
    writer.add_tokenizer_pre(PRE[folder])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    if scored:
        ranks = {}
        for left, right in pairs:
            ranks.setdefault(left + right, float(-len(ranks)))
        writer.add_token_scores([ranks.get(token, -1e9) for token in tokens])
    else:
        writer.add_token_merges([" ".join(pair) for pair in pairs])
    writer.add_add_space_prefix(scored)


def write(path, model, tokenizer, kind_of_file):
    folder = HERE / "families" / model
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = VOCABULARY.get(tokenizer, config["vocab_size"])
    kind = config["model_type"]
    architecture = getattr(gguf.MODEL_ARCH, ARCHITECTURES[kind])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_type("model")
    writer.add_file_type(FILE_TYPES[kind_of_file])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_sizes(writer, config, kind)
    add_tokenizer(writer, tokenizer, config["vocab_size"])
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(architecture, layers)
    if model == "llama-llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    for name, values in weights(folder).items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings", kind == "gpt2"):
            continue
        if name.split(".")[-2] in ("embed_tokens", "lm_head", "wte"):
            values = np.vstack([values] + [values[-1:]] * (config["vocab_size"] - len(values)))
        if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            values = values.T
        if ARCHITECTURES[kind] == "LLAMA" and ".q_proj." in name:
            values = permute(values, config["num_attention_heads"])
        if ARCHITECTURES[kind] == "LLAMA" and ".k_proj." in name:
            values = permute(values, config["num_key_value_heads"])
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        wanted = TYPES[kind_of_file]
        if values.ndim == 1 or target.endswith("_norm.weight") or target == "position_embd.weight":
            wanted = gguf.GGMLQuantizationType.F32
        elif kind_of_file == "q8_0" and values.shape[-1] % 32:
            wanted = gguf.GGMLQuantizationType.F16
        writer.add_tensor(
            target, gguf.quants.quantize(np.ascontiguousarray(values), wanted), raw_dtype=wanted
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def described(field):
    kinds = [kind.name for kind in field.types]
    if kinds[0] != "ARRAY":
        value = field.contents()
        return [kinds[0], value if not isinstance(value, float) else float(np.float32(value))]
    state = 14695981039346656037
    for index in field.data:
        state = fnv(field.parts[index].tobytes(), state)
    return ["ARRAY of " + kinds[-1], len(field.data), f"{state:016x}"]


# The tokenizers here have more tokens than the models: the last row of the tables is repeated.
VOCABULARY = {"llama3": 910, "llama2": 905, "tekken": 905, "qwen2": 905, "gpt2": 905}

if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for case, (model, tokenizer, kind) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.gguf"
            write(path, model, tokenizer, kind)
            reader = gguf.GGUFReader(path)
            fixture = {
                "model": model,
                "tokenizer": tokenizer,
                "type": kind,
                "vocab_size": VOCABULARY.get(tokenizer),
                "metadata": {
                    key: described(field)
                    for key, field in reader.fields.items()
                    if not key.startswith("GGUF.")
                },
                "tensors": {
                    t.name: [
                        t.tensor_type.name,
                        [int(n) for n in t.shape],
                        f"{fnv(t.data.tobytes()):016x}",
                    ]
                    for t in reader.tensors
                },
            }
        (OUT / f"{case}.json").write_text(json.dumps(fixture, indent=1, sort_keys=True) + "\n")
        print(case, len(fixture["tensors"]), "tensors")
