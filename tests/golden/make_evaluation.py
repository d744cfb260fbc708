#!/usr/bin/env python3
"""Fixtures of evaluation from lm-evaluation-harness: a tiny Llama with random weights, questions,
and what the harness makes of them.

Writes tests/golden/evaluation with
  model/               config.json and model.safetensors (fp32), for the tokenizer
                       tests/golden/tokenizers/llama3
  questions.jsonl      context, choices, gold
  text.txt
  expected.json        of each question the log-likelihoods, and the answers by acc, acc_norm,
                       acc_bytes (HFLM.loglikelihood, ConfigurableTask.process_results); the loss of
                       the text in windows of 32 that begin 12 tokens apart (transformers, the
                       sliding window of its page on perplexity)

    python make_evaluation.py

Needs lm_eval 0.4, torch, transformers and accelerate; neither the build nor the tests do.
"""
import json
import pathlib
import shutil

import numpy
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

GOLDEN = pathlib.Path(__file__).parent
OUT = GOLDEN / "evaluation"
WINDOW, STRIDE, LONGEST = 32, 12, 48

QUESTIONS = [
    ("The cat sat on the", ["mat", "window sill", "a"], 0),
    ("Question: Was sind zwei und zwei?\nAnswer:", ["vier", "fünf", "größer als fünf", "null"], 0),
    ("White space at the end \n ", ["begins the answer", "x"], 1),
    ("", ["There is no context", "Nothing"], 0),
    ("Accents and scripts: é, ß, 東京", ["大阪", "京都市東山区", "été", "naïve café"], 2),
    (
        "A long context, of which the beginning is cut off, " * 4 + "ends",
        ["here", "somewhere else entirely"],
        1,
    ),
    ("def add(a, b):\n    return", ["a + b", "a - b", "None  # nothing"], 0),
    ("One", ["1", "2", "3", "4", "5"], 3),
]
TEXT = (
    "The quick brown fox jumps over the lazy dog; größer ist es nicht.\n\n"
    "A second paragraph: 12 345 words, 東京. "
    * 6
)


def harness(model, tokenizer):
    return HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        device="cpu",
        dtype="float32",
        batch_size=3,
        max_length=LONGEST,
    )


def score(lm):
    """As ConfigurableTask.construct_requests and process_results do for
    output_type multiple_choice."""
    requests = [Instance("loglikelihood", {}, (context, " " + choice), i)
                for context, choices, _ in QUESTIONS for i, choice in enumerate(choices)]
    answers = iter(lm.loglikelihood(requests, disable_tqdm=True))
    result = []
    for _, choices, _ in QUESTIONS:
        lls = numpy.array([next(answers)[0] for _ in choices])
        result.append({
            "log_likelihoods": lls.tolist(),
            "acc": int(numpy.argmax(lls)),
            "acc_norm": int(numpy.argmax(lls / numpy.array([float(len(c)) for c in choices]))),
            "acc_bytes": int(
                numpy.argmax(lls / numpy.array([float(len(c.encode("utf-8"))) for c in choices]))
            ),
        })
    return result


def loss_of_text(model, tokenizer):
    ids = torch.tensor(tokenizer.encode(TEXT, add_special_tokens=False))
    inputs, targets = ids[:-1], ids[1:]
    total, done = 0.0, 0
    for begin in range(0, len(targets), STRIDE):
        end = min(begin + WINDOW, len(targets))
        with torch.no_grad():
            logits = model(inputs[None, begin:end]).logits[0]
        losses = torch.nn.functional.cross_entropy(
            logits.double(), targets[begin:end], reduction="none"
        )
        total += losses[done - begin:].sum().item()
        done = end
        if end == len(targets):
            break
    text_bytes = len(TEXT.encode()) - len(tokenizer.decode(ids[:1]).encode())
    return {"loss": total / len(targets), "tokens": len(targets), "bytes": text_bytes,
            "bits_per_byte": total / numpy.log(2) / text_bytes}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "model").mkdir(parents=True)
    torch.manual_seed(5)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(GOLDEN / "tokenizers/llama3/tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )
    config = transformers.LlamaConfig(
        vocab_size=904,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LONGEST,
        initializer_range=0.4,
        tie_word_embeddings=True,
        bos_token_id=902,
        eos_token_id=902,
    )
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.save_pretrained(OUT / "model")
    (OUT / "model/generation_config.json").unlink(missing_ok=True)
    with open(OUT / "questions.jsonl", "w") as file:
        for context, choices, gold in QUESTIONS:
            file.write(
                json.dumps(
                    {"context": context, "choices": choices, "gold": gold}, ensure_ascii=False
                )
                + "\n"
            )
    (OUT / "text.txt").write_text(TEXT)
    expected = {"longest": LONGEST, "questions": score(harness(model, tokenizer)),
                "text": {"window": WINDOW, "stride": STRIDE, **loss_of_text(model, tokenizer)}}
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
