"""Plain PyTorch models of the shapes that fp8train's presets have, for comparisons of speed and
quality.

GPT: pre-norm, learned positions, tanh GELU, tied head, initialized as nanoGPT and GPT-2 (normal
0.02, residual projections 0.02 / sqrt(2 L)). Llama: RMSNorm, rotary positions over split halves,
grouped-query attention, SwiGLU. Both use scaled_dot_product_attention.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Shape:
    family: str  # gpt2 | llama
    layers: int
    heads: int
    kv_heads: int
    width: int
    mlp: int
    vocab: int
    context: int
    bias: bool = False
    tied: bool = True


# Name of fp8train's preset -> shape, and the micro-batch (sequences, tokens
# each) of the comparison.
MODELS = {
    "nanogpt-laptop": (Shape("gpt2", 4, 4, 4, 128, 512, 65, 64), (12, 64)),
    "gpt2-124m": (Shape("gpt2", 12, 12, 12, 768, 3072, 50257, 1024, bias=True), (4, 256)),
    "llama-42m": (Shape("llama", 8, 8, 4, 512, 1536, 32000, 1024), (4, 256)),
    # Llama-3-8B's width, and as many layers as fit with fp32 states on one GPU
    # (gpu_check/shapes.py): 16 on 141 GB, 8 on 80 GB.
    **{
        f"llama-8b-{layers}l": (
            Shape("llama", layers, 32, 8, 4096, 14336, 128256, 8192, tied=False), (1, 8192)
        )
        for layers in (2, 4, 8, 16)
    },
}


def rotate(x, cos, sin):
    """x: (B, H, T, D); cos, sin: (T, D / 2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.head_dim = shape.width // shape.heads
        self.qkv = nn.Linear(
            shape.width, (shape.heads + 2 * shape.kv_heads) * self.head_dim, bias=shape.bias
        )
        self.output = nn.Linear(shape.width, shape.width, bias=shape.bias)

    def forward(self, x, rope):
        batch, length, width = x.shape
        sizes = [
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.kv_heads * self.head_dim,
        ]
        q, k, v = (
            t.view(batch, length, -1, self.head_dim).transpose(1, 2)
            for t in self.qkv(x).split(sizes, dim=-1)
        )
        if rope is not None:
            cos, sin = (table[:length].to(q.dtype) for table in rope)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads
        )
        return self.output(y.transpose(1, 2).reshape(batch, length, width))


class GeluMlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.up = nn.Linear(shape.width, shape.mlp, bias=shape.bias)
        self.down = nn.Linear(shape.mlp, shape.width, bias=shape.bias)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwigluMlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.mlp, bias=False)
        self.up = nn.Linear(shape.width, shape.mlp, bias=False)
        self.down = nn.Linear(shape.mlp, shape.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        gpt = shape.family == "gpt2"
        norm = (
            (lambda: nn.LayerNorm(shape.width, bias=shape.bias))
            if gpt
            else (lambda: nn.RMSNorm(shape.width, eps=1e-5))
        )
        self.norm1, self.norm2 = norm(), norm()
        self.attention = Attention(shape)
        self.mlp = GeluMlp(shape) if gpt else SwigluMlp(shape)

    def forward(self, x, rope):
        x = x + self.attention(self.norm1(x), rope)
        return x + self.mlp(self.norm2(x))


def token_loss(logits, targets, reduction="mean"):
    return F.cross_entropy(
        logits.float().view(-1, logits.shape[-1]), targets.view(-1), reduction=reduction
    )


class Transformer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.loss = token_loss  # build_cuda compiles it
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.positions = (
            nn.Embedding(shape.context, shape.width) if shape.family == "gpt2" else None
        )
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = (
            nn.LayerNorm(shape.width, bias=shape.bias)
            if shape.family == "gpt2"
            else nn.RMSNorm(shape.width, eps=1e-5)
        )
        self.lm_head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.apply(self.initialize)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.output.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers))
        if shape.tied:
            self.lm_head.weight = self.embedding.weight
        if shape.family == "llama":
            half = shape.width // shape.heads // 2
            angles = torch.outer(
                torch.arange(shape.context), 10000.0 ** (-torch.arange(half) / half)
            )
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

    @staticmethod
    def initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets, reduction="mean"):
        x = self.embedding(tokens)
        rope = None
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        else:
            rope = (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, rope)
        return self.loss(self.lm_head(self.norm(x)), targets, reduction)


def adamw(model, lr, betas, weight_decay):
    """Decay on matrices only, fused update."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


def convert_to_float8(model, recipe, emulate):
    """torchao's float8 training, the head excluded; emulated on the CPU, which
    has no float8 matmul."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    def convertible(module, name):
        return (
            "lm_head" not in name and module.in_features % 16 == 0 and module.out_features % 16 == 0
        )

    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
    return convert_to_float8_training(model, config=config, module_filter_fn=convertible)


VARIANTS = {  # name -> (bf16, torch.compile, float8 recipe)
    "fp32": (False, False, None),
    "bf16": (True, False, None),
    "bf16-compile": (True, True, None),
    "torchao-fp8": (True, False, "tensorwise"),
    "torchao-fp8-compile": (True, True, "tensorwise"),
    "torchao-rowwise-compile": (True, True, "rowwise"),
}


def build(shape, variant, seed=1):
    """On the CPU: the model (compiled where the variant says so) and a context manager
    factory for its forward."""
    bf16, compiled, recipe = VARIANTS[variant]
    torch.manual_seed(seed)
    model = Transformer(shape)
    if recipe:
        model = convert_to_float8(model, recipe, emulate=True)
    runner = torch.compile(model) if compiled else model
    return model, runner, lambda: torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16)


SDPA_BACKENDS = ["flash", "cudnn"]  # of scaled_dot_product_attention on a GPU


def choose_sdpa(backend):
    """None: PyTorch's own choice."""
    for name in SDPA_BACKENDS:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(backend in (name, None))
    for name in ("mem_efficient", "math"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(backend is None)


def sdpa_milliseconds(shape, rows, length):
    """Median time of the model's attention, forward and backward, with the
    backend chosen before."""
    head_dim = shape.width // shape.heads
    q, k, v = (
        torch.randn(
            rows, heads, length, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True
        )
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    times = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=shape.kv_heads != shape.heads
        ).sum().backward()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def choose_fastest_sdpa(shape, rows, length):
    """Leaves the faster of FlashAttention and cuDNN chosen, and names it; PyTorch's own choice
    where it refuses both."""
    times = {}
    for backend in SDPA_BACKENDS:
        choose_sdpa(backend)
        try:
            times[backend] = sdpa_milliseconds(shape, rows, length)
        except RuntimeError:  # this backend does not take the shape
            continue
    fastest = min(times, key=times.get) if times else None
    choose_sdpa(fastest)
    return fastest or "default"


def shard_fully(model):
    """FSDP2 on a world of one, as torchtitan sets it up: bf16 copies of fp32 parameters,
    gradients reduced in fp32. Weights are gathered once for forward and backward, as
    there is memory for it."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)


def build_cuda(shape, variant, seed=1):
    """On one GPU, each block and the loss compiled by themselves as in torchtitan. With "-fsdp"
    sharded over a world of one, else autocast to bf16, which has less to do on one GPU. The same
    two values as build()."""
    import contextlib

    name = variant.removesuffix("-fsdp")
    bf16, compiled, recipe = VARIANTS[name]
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = Transformer(shape)
    if recipe:
        model = convert_to_float8(model, recipe, emulate=False)
    if compiled:
        # torchtitan ships it so.
        torch._inductor.config.emulate_precision_casts = recipe == "rowwise"
        for block in model.blocks:
            block.compile(fullgraph=True)
        model.loss = torch.compile(token_loss, fullgraph=True)
    if variant != name:
        shard_fully(model)
        return model, model, contextlib.nullcontext
    return model, model, lambda: torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16)
