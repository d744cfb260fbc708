#!/usr/bin/env python3
"""Whole-model fixtures from PyTorch: two tiny models written by transformers, one batch, its loss
and gradients, and ten AdamW steps.

Writes, next to this script, for each of tiny-llama and tiny-gpt2 a folder with
  config.json, model.safetensors   as transformers saves them (random weights)
  expected.safetensors             tokens and targets [B, T] (int32), gradients of every parameter
                                   named grad.NAME
  expected.json                    loss in fp32, losses of ten AdamW steps on the same batch, and
                                   their settings

Needs torch, transformers and safetensors; neither the build nor the tests do.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0
STEPS = 10


def build(name):
    torch.manual_seed(1234)
    if name == "tiny-llama":  # grouped queries, tied head, llama3 rope scaling
        config = LlamaConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            rope_theta=10000.0,
            rope_scaling=dict(
                rope_type="llama3",
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
            initializer_range=0.2,
            attn_implementation="eager",
        )
        model = LlamaForCausalLM(config)
    else:
        config = GPT2Config(
            vocab_size=67,
            n_positions=32,
            n_embd=32,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=0.2,
            attn_implementation="eager",
        )
        model = GPT2LMHeadModel(config)
    # Norm weights and biases away from their defaults, so that a mix-up cannot hide.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.float()


def decay_groups(model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [
        dict(params=decay, weight_decay=ADAMW["weight_decay"]),
        dict(params=rest, weight_decay=0.0),
    ]


def loss_of(model, tokens, targets):
    logits = model(tokens.long()).logits
    return torch.nn.functional.cross_entropy(
        logits.view(-1, logits.shape[-1]), targets.long().view(-1)
    )


def make(name):
    folder = HERE / name
    model = build(name)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    stream = torch.randint(
        0, model.config.vocab_size, (3, 25), generator=torch.Generator().manual_seed(7)
    )
    tokens, targets = stream[:, :-1].contiguous().int(), stream[:, 1:].contiguous().int()
    loss = loss_of(model, tokens, targets)
    loss.backward()
    tensors = {"tokens": tokens, "targets": targets}
    for key, parameter in model.named_parameters():
        tensors["grad." + key] = parameter.grad.clone().contiguous()
    save_file(tensors, folder / "expected.safetensors")
    optimizer = torch.optim.AdamW(
        decay_groups(model), lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"]
    )
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step_loss = loss_of(model, tokens, targets)
        step_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(step_loss.item())
    expected = dict(loss=loss.item(), step_losses=losses, grad_clip=CLIP, **ADAMW)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(name, losses)


if __name__ == "__main__":
    make("tiny-llama")
    make("tiny-gpt2")
