#!/usr/bin/env python3
"""Runs what `fp8train export --to gguf` writes in llama.cpp, and compares logits and token ids.

    python check_llama_cpp.py PROGRAM

logits   of each family in tests/golden/families and each type, on the CPU with an fp32 cache,
         against those that transformers computed in fp64 (expected.safetensors): |difference| /
         |logits|, at most LIMITS. ggml casts what a matrix is multiplied with to the type of the
         matrix (Q8_0: blocks of 32 with an fp16 scale), so that bf16 files have its rounding
         although the weights are bf16 exactly, and GELU is a table in fp16. What is left must be
         llama.cpp's own: files that it makes of the fp32 file itself give the same logits, bit for
         bit
ids      of each tokenizer in tests/golden/tokenizers that a GGUF file can have, over texts.bin,
         against the library that it comes from, and of the tokenizer of bytes. DIFFERENT has the
         texts of which llama.cpp is known to make other ids, all behind a note of `export`

Needs llama-cpp-python (pip builds it: CMAKE_ARGS="-DLLAVA_BUILD=OFF" pip install --no-binary
llama-cpp-python llama-cpp-python), numpy and safetensors; the tests do not.
"""
import ctypes
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import llama_cpp
import numpy as np
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).parent
FAMILIES, TOKENIZERS = HERE / "families", HERE / "tokenizers"
LIMITS = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 1e-2, "q8_0": 5e-2}
GELU_LIMIT = 5e-4
FILE_TYPES = {"fp16": 1, "bf16": 32, "q8_0": 7}  # llama_ftype
REFUSED = {"llama-yarn", "qwen3-bias-yarn"}  # llama.cpp has no such model
WITHOUT_LISTS = {
    "metaspace-always", "metaspace-first", "mixed", "sentencepiece-unigram", "unigram", "wordlevel",
    "wordpiece",
}
STRIPPING = {6, 9}  # lstrip, rstrip and single_word
DIFFERENT = {
    "gpt2": STRIPPING,
    "llama2": STRIPPING,
    "llama3": STRIPPING,
    "qwen2": STRIPPING | {1},
    "tekken": STRIPPING,
    "gpt2-prefix": set(range(21)) - {12, 13, 15},
    "sentencepiece-bpe": {0, 3, 9, 12, 13, 17},
    "sentencepiece-user": {0, 3, 6, 9},
}
F32 = 0  # ggml_type


def export(program, folder, out, dtype="fp32"):
    return subprocess.run(
        [program, "export", folder, "--to", "gguf", "--out", out, "--dtype", dtype],
        capture_output=True,
        text=True,
    )


def opened(path, vocabulary_only=False):
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers, parameters.vocab_only, parameters.use_mmap = 0, vocabulary_only, False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, f"llama.cpp does not open {path}"
    return model


def logits(path, tokens):
    model = opened(path)
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = len(tokens)
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = F32
    parameters.flash_attn_type = 0  # disabled
    context = llama_cpp.llama_init_from_model(model, parameters)
    assert context, f"llama.cpp does not run {path}"
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [
        np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (size,)).astype(
            np.float64
        )
        for i in range(len(tokens))
    ]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def converted(path, to, file_type):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread = file_type, 1
    assert llama_cpp.llama_model_quantize(str(path).encode(), str(to).encode(), parameters) == 0


def check_logits(program, case, out):
    expected = load_file(FAMILIES / case / "expected.safetensors")
    want, said = expected["logits"].astype(np.float64), []
    for dtype, limit in LIMITS.items():
        path = out / f"{case}-{dtype}.gguf"
        done = export(program, FAMILIES / case, path, dtype)
        assert (done.returncode != 0) == (case in REFUSED), (case, done.stderr)
        if done.returncode != 0:
            print(f"{case:20} refused: {done.stderr.strip().splitlines()[-1]}")
            return
        found = logits(path, expected["tokens"])
        difference = np.linalg.norm(found - want) / np.linalg.norm(want)
        assert difference <= max(limit, GELU_LIMIT if case.startswith("gpt2") else 0), (
            case,
            dtype,
            difference,
        )
        if dtype in FILE_TYPES:
            converted(out / f"{case}-fp32.gguf", out / "own.gguf", FILE_TYPES[dtype])
            assert (logits(out / "own.gguf", expected["tokens"]) == found).all(), (case, dtype)
        said.append(f"{dtype} {difference:.1e}")
    print(f"{case:20} logits differ by: {', '.join(said)}")


def make_model(folder, tokenizer, vocabulary=1024, width=32):
    """A Llama of one layer around a tokenizer."""
    shapes = {"embed_tokens": (vocabulary, width), "norm": (width,)}
    for name in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    ):
        shapes[f"layers.0.{name}"] = (width, width)
    shapes["layers.0.input_layernorm"] = shapes["layers.0.post_attention_layernorm"] = (width,)
    shutil.copytree(tokenizer, folder)
    save_file(
        {f"model.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(
        json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
            "hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        })
    )


def texts():
    """Those that are UTF-8: others are not texts for llama.cpp."""
    data, found = (TOKENIZERS / "texts.bin").read_bytes(), []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[4:4 + size])
        data = data[4 + size:]
    return {
        i: text for i, text in enumerate(found) if text.decode("utf-8", "replace").encode() == text
    }


def tokenized(vocabulary, text, parse_special, add_special=False):
    ids = (llama_cpp.llama_token * (len(text) + 8))()
    count = llama_cpp.llama_tokenize(
        vocabulary, text, len(text), ids, len(ids), add_special, parse_special
    )
    assert count >= 0
    return ids[:count]


def check_bytes(program, out):
    (out / "text.txt").write_bytes(b"the river ran over stones and we slept\n" * 30)
    subprocess.run(
        [
            program, "device=cpu", "model.preset=toy", "data.train=text.txt", "data.seq_length=32",
            "data.tokenizer=byte", "threads=1", "training.micro_batch_size=1",
            "training.max_steps=1", "output_dir=run", "-q",
        ],
        cwd=out,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    done = export(program, out / "run", out / "bytes.gguf")
    assert done.returncode == 0, done.stderr
    model = opened(out / "bytes.gguf", vocabulary_only=True)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    different = [
        i for i, text in texts().items() if tokenized(vocabulary, text, False) != list(text)
    ]
    llama_cpp.llama_model_free(model)
    print(f"{'bytes':20} other ids for {different or 'none'}; {done.stderr.strip()}")
    assert not different


def check_ids(program, name, out):
    expected = json.loads((TOKENIZERS / name / "expected.json").read_text())
    make_model(out / name, TOKENIZERS / name)
    path = out / f"{name}.gguf"
    done = export(program, out / name, path)
    assert done.returncode == 0, done.stderr
    assert ("the file has no tokenizer" in done.stderr) == (name in WITHOUT_LISTS), done.stderr
    if name in WITHOUT_LISTS:
        return
    model = opened(path, vocabulary_only=True)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    file, different, count = TOKENIZERS / name / "tokenizer.json", set(), 0
    post = json.loads(file.read_text())["post_processor"] if file.exists() else None
    first = [token["ids"][0] for token in post["special_tokens"].values()] if post else []
    for i, text in texts().items():
        ids = tokenized(vocabulary, text, file.exists())
        assert (
            not file.exists() or tokenized(vocabulary, text, True, add_special=True) == first + ids
        )
        count += len(ids)
        if ids != expected[i]["ids"]:
            different.add(i)
            if i not in DIFFERENT.get(name, ()):
                print(
                    f"{name}: text {i}, {text[:60]!r}:\n  {ids[:40]} instead of\n"
                    f"  {expected[i]['ids'][:40]}"
                )
    llama_cpp.llama_model_free(model)
    print(
        f"{name:20} {count} ids of {len(texts())} texts; other ids for "
        f"{sorted(different) or 'none'}"
    )
    assert different == DIFFERENT.get(name, set()), different
    assert not different or "such texts get other ids there" in done.stderr, done.stderr


if __name__ == "__main__":
    silence = llama_cpp.llama_log_callback(
        lambda level, text, data: sys.stderr.write(text.decode()) if level == 4 else None
    )
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(path.name for path in FAMILIES.iterdir()):
            check_logits(sys.argv[1], name, pathlib.Path(folder))
        check_bytes(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(folder))
        for name in sorted(path.name for path in TOKENIZERS.iterdir() if path.is_dir()):
            check_ids(sys.argv[1], name, pathlib.Path(folder))
