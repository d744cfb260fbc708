#!/usr/bin/env python3
"""Losses of PyTorch with torchao's float8 linear layers (emulate mode) for whole runs of the
program: the folders tiny-llama and tiny-gpt2 (see make_models.py) trained for 50 steps.

Writes, in the folder run next to this script,
  torchao.bin          a token file of llm.c (256 int32 of header, then u16 ids); every window of
                       seq_length tokens begins with token 0, so that windows can trade places:
                       within a batch that changes nothing but the order of sums
  NAME-torchao.json    for each model the settings and, for each recipe, the loss of every step

It is a bf16 run with fp32 weights. So that the difference to the program is one of the order of
sums only, everything is rounded to bf16 where the program (or a compiled PyTorch one) rounds it,
once for each fused operation: the arithmetic between is fp32. A float8 layer gets its bf16 values
as fp32 tensors, which makes torchao return the fp32 product, to which the bias is added before it
is rounded. Layers are those of the program: q, k and v are one, and so are gate and up. The head is
a bf16 product; float8 weight gradients are rounded to bf16 as they cross torchao's all-reduce.

Needs numpy, torch, torchao and transformers (made with torch 2.15, torchao 0.18); neither
the build nor the tests do.
"""
import dataclasses
import json
import logging
import math
import pathlib

import numpy
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

logging.disable(logging.WARNING)

from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: E402

HERE = pathlib.Path(__file__).parent
OUT = HERE / "run"
STEPS, BATCH, LENGTH, WINDOWS, VOCABULARY = 50, 4, 16, 60, 61
LR, MIN_LR, WARMUP, BETAS, EPS, DECAY, CLIP = 3e-3, 3e-4, 4, (0.9, 0.95), 1e-8, 0.1, 1.0


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * progress))


def write_tokens(path):
    # Walks with a preference for near ids: something that a model can learn.
    random = numpy.random.default_rng(5)
    ids = numpy.cumsum(random.integers(0, 4, WINDOWS * LENGTH + 1)) % VOCABULARY
    ids[::LENGTH] = 0
    header = numpy.zeros(256, dtype="<i4")
    header[:3] = [20240520, 1, len(ids)]
    path.write_bytes(header.tobytes() + ids.astype("<u2").tobytes())


class Fork(torch.autograd.Function):
    """x and norm(x), both bf16; the two gradients of x are added in fp32 and rounded once."""

    @staticmethod
    def forward(ctx, norm, x, *parameters):
        ctx.norm = norm
        ctx.save_for_backward(x, *parameters)
        return x.clone(), norm(x.float(), *parameters).bfloat16()

    @staticmethod
    def backward(ctx, d_x, d_y):
        saved = [t.detach().float().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            y = ctx.norm(*saved)
        gradients = torch.autograd.grad(y, saved, d_y.float())
        return None, (d_x.float() + gradients[0]).bfloat16(), *gradients[1:]


class Attention(torch.autograd.Function):
    """Causal attention of bf16 heads (B, H, T, D) with fp32 scores; backward multiplies with the
    rounded output, as FlashAttention does."""

    @staticmethod
    def probabilities(q, k):
        mask = torch.ones(q.shape[2], q.shape[2]).triu(1).bool()
        return (
            (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(mask, -math.inf).softmax(-1)
        )

    @staticmethod
    def forward(ctx, q, k, v):
        group = q.shape[1] // k.shape[1]
        keys, values = (t.float().repeat_interleave(group, dim=1) for t in (k, v))
        out = (Attention.probabilities(q.float(), keys) @ values).bfloat16()
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out = (t.float() for t in ctx.saved_tensors)
        d_out = d_out.float()
        group = q.shape[1] // k.shape[1]
        keys, values = (t.repeat_interleave(group, dim=1) for t in (k, v))
        p = Attention.probabilities(q, keys)
        d_scores = (
            p
            * (d_out @ values.transpose(2, 3) - (d_out * out).sum(-1, keepdim=True))
            / math.sqrt(q.shape[3])
        )
        shape = (q.shape[0], k.shape[1], group, *k.shape[2:])
        d_k, d_v = (
            (t.transpose(2, 3) @ rows).view(shape).sum(2) for t, rows in ((d_scores, q), (p, d_out))
        )
        return (d_scores @ keys).bfloat16(), d_k.bfloat16(), d_v.bfloat16()


def linear(weight, bias=None):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data.copy_(weight)
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


class Block(torch.nn.Module):
    def __init__(self, config, rotary, norms, qkv, output, up, down):
        super().__init__()
        self.heads, self.kv_heads, self.rotary, self.llama = (
            config.heads,
            config.kv_heads,
            rotary,
            config.llama,
        )
        self.norms = torch.nn.ModuleList(torch.nn.ParameterList(n) for n in norms)
        self.qkv, self.output, self.up, self.down, self.eps = qkv, output, up, down, config.eps

    def norm(self, x, weight, bias=None):
        if self.llama:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)

    def rotated(self, x):  # (B, H, T, D) in fp32, returned in bf16
        if self.rotary is None:
            return x.bfloat16()
        angles = torch.outer(torch.arange(x.shape[2], dtype=torch.float64), self.rotary)
        cosine, sine = angles.cos().float(), angles.sin().float()
        low, high = x.chunk(2, dim=-1)
        return torch.cat(
            [low * cosine - high * sine, high * cosine + low * sine], dim=-1
        ).bfloat16()

    def attend(self, qkv):
        batch, length, width = qkv.shape
        size = width // (self.heads + 2 * self.kv_heads)
        rows = qkv.view(batch, length, -1, size).transpose(1, 2)
        q, k, v = rows.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        attended = Attention.apply(self.rotated(q.float()), self.rotated(k.float()), v)
        return attended.transpose(1, 2).reshape(batch, length, -1)

    def forward(self, x):
        x, normed = Fork.apply(self.norm, x, *self.norms[0])
        x = x + self.output(self.attend(self.qkv(normed.float()).bfloat16()).float()).bfloat16()
        x, normed = Fork.apply(self.norm, x, *self.norms[1])
        inner = self.up(normed.float()).bfloat16().float()
        if self.llama:
            gate, up = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(inner, approximate="tanh")
        return x + self.down(inner.bfloat16().float()).bfloat16()


@dataclasses.dataclass
class Config:
    llama: bool
    heads: int
    kv_heads: int
    eps: float


class Model(torch.nn.Module):
    def __init__(self, source):
        super().__init__()
        weights, config = source.state_dict(), source.config
        self.llama = config.model_type == "llama"
        if self.llama:
            shape = Config(
                True, config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
            )
            self.table, self.positions = (
                torch.nn.Parameter(weights["model.embed_tokens.weight"].clone()),
                None,
            )
            last, prefix = [weights["model.norm.weight"]], "model.layers.{}."
        else:
            shape = Config(False, config.n_head, config.n_head, config.layer_norm_epsilon)
            self.table = torch.nn.Parameter(weights["transformer.wte.weight"].clone())
            self.positions = torch.nn.Parameter(weights["transformer.wpe.weight"].clone())
            last, prefix = (
                [weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"]],
                "transformer.h.{}.",
            )
        blocks = []
        for i in range(config.num_hidden_layers):
            get = {
                name[len(prefix.format(i)) :]: t
                for name, t in weights.items()
                if name.startswith(prefix.format(i))
            }
            if self.llama:
                joined = [
                    torch.cat([get[f"self_attn.{n}_proj.weight"] for n in "qkv"]),
                    get["self_attn.o_proj.weight"],
                    torch.cat([get["mlp.gate_proj.weight"], get["mlp.up_proj.weight"]]),
                    get["mlp.down_proj.weight"],
                ]
                norms, layers = (
                    [[get["input_layernorm.weight"]], [get["post_attention_layernorm.weight"]]],
                    [linear(w) for w in joined],
                )
            else:
                norms = [[get[f"{n}.weight"], get[f"{n}.bias"]] for n in ("ln_1", "ln_2")]
                layers = [
                    linear(get[f"{n}.weight"].T, get[f"{n}.bias"])
                    for n in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
                ]
            rotary = source.model.rotary_emb.inv_freq.double() if self.llama else None
            blocks.append(Block(shape, rotary, [[t.clone() for t in n] for n in norms], *layers))
        self.blocks = torch.nn.ModuleList(blocks)
        self.last = torch.nn.ParameterList(t.clone() for t in last)

    def forward(self, tokens):
        x = F.embedding(tokens, self.table)
        if self.positions is not None:
            x = x + self.positions[:tokens.shape[1]]
        x = x.bfloat16()
        for block in self.blocks:
            x = block(x)
        normed = self.blocks[0].norm(x.float(), *self.last).bfloat16()
        # its gradient is fp32
        rounded = self.table + (self.table.bfloat16().float() - self.table).detach()
        return (normed.float() @ rounded.T).bfloat16().float()


def train(name, recipe):
    source = AutoModelForCausalLM.from_pretrained(HERE / name).float()
    model = Model(source)
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    model = convert_to_float8_training(model, config=config)
    float8 = [m.weight for m in model.modules() if type(m).__name__ == "Float8Linear"]
    assert len(float8) == 4 * len(model.blocks)
    ids = torch.from_numpy(
        numpy.fromfile(OUT / "torchao.bin", dtype="<u2", offset=1024).astype(numpy.int64)
    )
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=DECAY), dict(params=vectors, weight_decay=0.0)],
        lr=LR,
        betas=BETAS,
        eps=EPS,
    )
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        starts = [((step * BATCH + b) % WINDOWS) * LENGTH for b in range(BATCH)]
        tokens = torch.stack([ids[s:s + LENGTH] for s in starts])
        targets = torch.stack([ids[s + 1:s + LENGTH + 1] for s in starts])
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        loss.backward()
        for weight in float8:
            weight.grad = weight.grad.bfloat16().float()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(loss.item())
    return dict(losses=losses, grad_norms=norms)


def make(name):
    recipes = {recipe: train(name, recipe) for recipe in ("tensorwise", "rowwise")}
    expected = dict(
        steps=STEPS,
        micro_batch_size=BATCH,
        gradient_accumulation_steps=1,
        seq_length=LENGTH,
        lr=LR,
        min_lr=MIN_LR,
        warmup_steps=WARMUP,
        betas=BETAS,
        eps=EPS,
        weight_decay=DECAY,
        grad_clip=CLIP,
        recipes=recipes,
    )
    (OUT / f"{name}-torchao.json").write_text(json.dumps(expected, indent=1) + "\n")
    for recipe, result in recipes.items():
        print(name, recipe, result["losses"][0], result["losses"][-1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_tokens(OUT / "torchao.bin")
    make("tiny-llama")
    make("tiny-gpt2")
