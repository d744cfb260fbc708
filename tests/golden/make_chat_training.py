#!/usr/bin/env python3
"""A chat fine-tune of a tiny Llama by transformers: 2,000 dialogues, loss on answers only, five
AdamW steps.

    tests/golden/make_chat_training.py        after make_chat.py, whose llama3 tokenizer it uses

Writes tests/golden/chat/training: dialogues.jsonl.gz, config.json and model.safetensors of
a model with random weights, and expected.json: the losses of five steps and the targets of
each. Every dialogue is run alone; which of them a step has follows from the packing that
lib/data/document_samples.h describes. The loss is transformers' own with
num_items_in_batch: the mean over all targets of the step. Needs torch, transformers and
jinja2; neither the build nor the tests do.
"""
import gzip
import json
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from make_chat import CASES, HERE

DIALOGUES, LENGTH, SEQUENCES, STEPS, OPEN = 2000, 256, 8, 5, 64
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0
WORDS = (
    "red green blue one two three four cat dog house tree river what is the of a big small and or "
    "not yes no why because"
).split()


def dialogues():
    made = []
    draw = random.Random(5)
    text = lambda most: " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, most)))
    for i in range(DIALOGUES):
        turns = [("system", "Be brief.")] if i % 5 == 0 else []
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            turns += [
                ("user", text(12) + "?"),
                ("assistant", text(90 if i % 97 == 3 else 14) + "."),
            ]
        made.append([{"role": role, "content": content} for role, content in turns])
    return made


def first_fit(lengths):
    opened, samples = [], []
    for index, length in enumerate(lengths):
        sequence = next((s for s in opened if s["free"] >= length - 1), None)
        if sequence is None:
            if len(opened) == OPEN:
                opened.remove(min(opened, key=lambda s: s["free"]))
            sequence = dict(free=LENGTH, documents=[])
            opened.append(sequence)
            samples.append(sequence)
        sequence["free"] -= length - 1
        sequence["documents"].append(index)
    return [s["documents"] for s in samples]


def encode(folder, made):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "llama3")
    encoded = []
    for messages in made:
        both = tokenizer.apply_chat_template(
            messages,
            chat_template=CASES["llama3"][0],
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        ids, mask = both["input_ids"][:LENGTH + 1], both["assistant_masks"][:LENGTH + 1]
        encoded.append((ids, [i if m else -100 for i, m in zip(ids, mask)]))
    return encoded, len(tokenizer)


def build(vocabulary):
    torch.manual_seed(1234)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).float()


def train(model, encoded, samples):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        dict(params=decay, weight_decay=ADAMW["weight_decay"]),
        dict(params=rest, weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"])
    losses, counts = [], []
    for step in range(STEPS):
        chosen = [
            encoded[i]
            for sample in samples[step * SEQUENCES : (step + 1) * SEQUENCES]
            for i in sample
        ]
        targets = sum(sum(label >= 0 for label in labels[1:]) for _, labels in chosen)
        optimizer.zero_grad()
        total = 0.0
        for ids, labels in chosen:
            loss = model(
                input_ids=torch.tensor([ids]),
                labels=torch.tensor([labels]),
                num_items_in_batch=targets,
            ).loss
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(total)
        counts.append(targets)
        print(step, len(chosen), "dialogues", targets, "targets", total)
    return losses, counts


def main():
    folder = HERE / "chat" / "training"
    folder.mkdir(exist_ok=True)
    made = dialogues()
    text = "".join(json.dumps({"messages": messages}) + "\n" for messages in made)
    (folder / "dialogues.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    encoded, vocabulary = encode(HERE / "chat", made)
    samples = first_fit([len(ids) for ids, _ in encoded])
    model = build(vocabulary)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    losses, counts = train(model, encoded, samples)
    expected = dict(losses=losses, targets=counts, sequences=len(samples), grad_clip=CLIP, **ADAMW)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
