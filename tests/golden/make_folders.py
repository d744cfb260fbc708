#!/usr/bin/env python3
"""Model folders as transformers writes them, with every file and key that save_pretrained leaves
next to the weights.

    make_folders.py         writes folders/FAMILY-N for each family, N the major version of
                            transformers (with 4.57 and with 5.24 for the files of this repository)
    make_folders.py PATH    opens a folder in the same way, and prints what it finds as JSON

Needs torch, transformers, sentencepiece and protobuf; neither the build nor the tests do.
"""
import io
import json
import pathlib
import shutil
import sys
import tempfile

import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

HERE = pathlib.Path(__file__).parent
SHAPE = dict(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=128,
    initializer_range=0.1,
)
TEXTS = [f"The {a} {b} and the {b} {a} {i}." for i, a in enumerate(["cat", "tree", "sea", "hill"])
         for b in ["sees", "finds", "hears", "follows"]]
CHAT = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Where transformers changed a name between its versions.
FIVE = transformers.__version__.startswith("5.")


def rope(theta, **scaling):
    if FIVE:
        kind = scaling or dict(rope_type="default")
        return dict(rope_parameters=dict(rope_theta=theta, **kind))
    return dict(rope_theta=theta, **(dict(rope_scaling=scaling) if scaling else {}))


def byte_level():
    """A BPE of bytes, and its vocab.json and merges.txt."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    state = json.loads(bpe.to_str())["model"]
    return bpe, state["vocab"], [tuple(pair) for pair in state["merges"]]


def fast_tokenizer():
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level()[0], bos_token=SPECIAL[0], eos_token=SPECIAL[2],
        pad_token=SPECIAL[0], model_max_length=128)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[1:2]})
    return tokenizer


def gpt2_like(kind, folder, **tokens):
    """A tokenizer of vocab.json and merges.txt."""
    _, vocab, merges = byte_level()
    name = kind if FIVE else kind + "Fast"
    if FIVE:
        return getattr(transformers, name)(vocab=vocab, merges=merges, **tokens)
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False))
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return getattr(transformers, name)(
        vocab_file=str(folder / "vocab.json"), merges_file=str(folder / "merges.txt"), **tokens)


def sentencepiece_tokenizer(folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=290, model_type="bpe",
        byte_fallback=True, minloglevel=2, hard_vocab_limit=False,
        normalization_rule_name="identity")
    path = folder / "tokenizer.model"
    path.write_bytes(model.getvalue())
    name = "LlamaTokenizer" if FIVE else "LlamaTokenizerFast"
    return getattr(transformers, name).from_pretrained(folder, model_max_length=128)


def llama(*_):
    tokenizer = fast_tokenizer()
    tokenizer.chat_template = {"default": CHAT, "rag": "{{ documents }}" + CHAT}
    ids = tokenizer.convert_tokens_to_ids(SPECIAL)
    config = transformers.LlamaConfig(
        **SHAPE, vocab_size=len(tokenizer), bos_token_id=ids[0], eos_token_id=[ids[0], ids[2]],
        pad_token_id=ids[0], attention_dropout=0.1, use_cache=False,
        **rope(500000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32))
    return config, tokenizer, dict(
        do_sample=True, temperature=0.6, top_p=0.9, bos_token_id=ids[0],
        eos_token_id=[ids[0], ids[2]], pad_token_id=ids[0])


def mistral(_, scratch):
    tokenizer = sentencepiece_tokenizer(scratch)
    config = transformers.MistralConfig(
        **SHAPE, vocab_size=len(tokenizer), head_dim=12, sliding_window=64, bos_token_id=1,
        eos_token_id=2, rms_norm_eps=1e-5, **rope(1e6))
    return config, tokenizer, dict(bos_token_id=1, eos_token_id=2)


def qwen2(_, scratch):
    tokenizer = gpt2_like("Qwen2Tokenizer", scratch, eos_token="<|im_end|>",
                          unk_token=None, pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHAT
    ids = tokenizer.convert_tokens_to_ids(SPECIAL)
    config = transformers.Qwen2Config(
        **SHAPE, vocab_size=len(tokenizer) + 3, use_sliding_window=False, sliding_window=96,
        max_window_layers=1, tie_word_embeddings=True, bos_token_id=ids[0], eos_token_id=ids[2],
        **rope(1e6))
    return config, tokenizer, dict(
        repetition_penalty=1.05, top_k=20, do_sample=True, eos_token_id=[ids[2], ids[0]])


def qwen3(folder, _):
    tokenizer = fast_tokenizer()
    tokenizer.chat_template = CHAT
    ids = tokenizer.convert_tokens_to_ids(SPECIAL)
    config = transformers.Qwen3Config(
        **SHAPE, vocab_size=len(tokenizer), head_dim=8, bos_token_id=ids[0], eos_token_id=ids[2],
        id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1},
        auto_map={"AutoConfig": "configuration_x.XConfig"},
        **rope(1e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=32))
    config.trained_with = {"tokens": 1000, "mix": ["web", None, 0.5]}  # a key that nobody knows
    for name, text in {"README.md": "---\nlicense: apache-2.0\n---\n", "LICENSE": "Terms.\n",
                       ".gitattributes": "# none\n",
                       "configuration_x.py": "class XConfig: ...\n",
                       "preprocessor_config.json": "{}\n"}.items():
        (folder / name).write_text(text)
    return config, tokenizer, dict(max_new_tokens=64, eos_token_id=[ids[2], ids[0]])


def gpt2(_, scratch):
    tokenizer = gpt2_like("GPT2Tokenizer", scratch)
    end = len(tokenizer) - 1
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=64,
        bos_token_id=end, eos_token_id=end, summary_first_dropout=0.2,
        task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}})
    return config, tokenizer, dict(bos_token_id=end, eos_token_id=end)


def write(family):
    folder = HERE / "folders" / f"{family.__name__}-{transformers.__version__[0]}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        config, tokenizer, generation = family(folder, pathlib.Path(scratch))
        tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(**generation)
    model.save_pretrained(folder)


def opened(folder):
    found = dict(version=transformers.__version__, folder=str(folder))
    config = AutoConfig.from_pretrained(folder)
    found["config"] = config.to_dict()
    found["generation"] = GenerationConfig.from_pretrained(folder).to_dict()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (AttributeError, ValueError) as error:  # version 4 does not read files of version 5
        tokenizer, found["tokenizer"] = None, str(error)
    if tokenizer is not None:
        read_tokenizer(tokenizer, found)
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    found["class"] = type(model).__name__
    found["model_generation"] = model.generation_config.to_dict()
    found["loading"] = {key: sorted(map(str, value)) for key, value in loading.items() if value}
    return found


def read_tokenizer(tokenizer, found):
    found["ids"] = [tokenizer(text)["input_ids"] for text in [*TEXTS[:2], "<|im_end|> x"]]
    if tokenizer.chat_template:
        found["chat"] = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    found["templates"] = sorted(tokenizer.chat_template) if isinstance(
        tokenizer.chat_template, dict) else bool(tokenizer.chat_template)


if len(sys.argv) > 1:
    print(json.dumps(opened(pathlib.Path(sys.argv[1])), indent=1, default=str))
else:
    for each in (llama, mistral, qwen2, qwen3, gpt2):
        write(each)
