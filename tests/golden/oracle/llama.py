"""A Llama with linear layers in the formats of a plan: loss and gradients of a step, by hand, with
sums in fp64. Where a fused operation would store its result, it is rounded to the activation's
type."""

import math

import numpy as np

from . import experts, weights
from .formats import fp32, quantized

HIDDEN, INNER, HEADS, KV_HEADS, SIZE = 128, 256, 4, 2, 32
VOCABULARY, ROWS, LENGTH = 256, 16, 16
EPS, THETA = 1e-5, 10000.0
WIDTHS = {
    "attention.qkv": ((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN),
    "attention.output": (HIDDEN, HEADS * SIZE),
}


def mlp_widths(shape):
    """Of an MLP, or of experts."""
    return dict(shape.widths(HIDDEN) if shape else experts.mlp_widths("mlp", INNER, HIDDEN))


def parameters(layers, shape=None):
    """Name and shape of each that has a gradient, in the program's order."""
    yield "embedding.weight", (VOCABULARY, HIDDEN)
    widths = WIDTHS | mlp_widths(shape)
    for i in range(layers):
        for name in ("attention_norm", *WIDTHS, "mlp_norm", *mlp_widths(shape)):
            yield f"layers.{i}.{name}.weight", widths.get(name, (HIDDEN,))
    yield "final_norm.weight", (HIDDEN,)
    yield "head.weight", (VOCABULARY, HIDDEN)


class Linear:
    """y = x w^T and its gradients. `plan` has a Cast for each operand; None for that of wgrad: the
    codes of the other GEMM."""

    def __init__(self, plan):
        self.plan, self.slots = plan, {}

    def cast(self, tensor, cast, x, along):
        slot = None
        if cast.policy != "current":
            slot = self.slots.setdefault(tensor, self.plan.slot(tensor, cast))
        return quantized(cast, x, along, slot)

    def set_weight(self, weight):
        plan, self.weight = self.plan, weight
        value = plan.stored_weight(weight)
        self.fprop_w = self.cast("w", plan.fprop_w, value, 1)
        shared = plan.dgrad_w is None
        codes = self.fprop_w if shared else self.cast("w.dgrad", plan.dgrad_w, value, 0)
        self.dgrad_w = plan.straight_through(codes)

    def forward(self, x):
        plan = self.plan
        codes = self.cast("x", plan.fprop_x, x, 1)
        y = plan.act(codes @ self.fprop_w.T)
        return y, (plan.straight_through(codes) if plan.wgrad_x is None else x)

    def backward(self, dy, saved):
        plan = self.plan
        codes = self.cast("dy", plan.dgrad_dy, dy, 1)
        dx = plan.act(codes @ self.dgrad_w)
        if plan.wgrad_dy is not None:
            codes = self.cast("dy.wgrad", plan.wgrad_dy, dy, 0)
        x = saved if plan.wgrad_x is None else self.cast("x.wgrad", plan.wgrad_x, saved, 0)
        return dx, codes.T @ x


class PlainHead:
    """A head in the activation's type, with the methods of Linear."""

    def __init__(self, act):
        self.act, self.slots = act, {}

    def set_weight(self, weight):
        self.weight = self.act(weight)

    def forward(self, x):
        return self.act(x @ self.weight.T), x

    def backward(self, dy, saved):
        return self.act(dy @ self.weight), dy.T @ saved


class Norm:
    def __init__(self, act):
        self.act = act

    def forward(self, x, weight):
        self.x, self.weight = x, weight
        self.inverse = fp32(1 / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPS))
        return self.act(fp32(x * self.inverse) * weight)

    def backward(self, dy):
        """The gradients of x, not rounded, and of the weight."""
        hat = self.x * self.inverse
        g = dy * self.weight
        return self.inverse * (g - hat * np.mean(g * hat, axis=1, keepdims=True)), (dy * hat).sum(0)


def rotate(x, back=False):
    """x [.., T, D], halves as transformers pairs them."""
    frequency = THETA ** (-np.arange(0, SIZE, 2) / SIZE)
    angle = np.outer(np.arange(x.shape[-2]), frequency)
    cosine, sine = fp32(np.cos(angle)), fp32(np.sin(angle))
    sine = -sine if back else sine
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)


class Attention:
    """Causal, scores and probabilities not rounded; backward multiplies with the rounded output, as
    FlashAttention does (arXiv 2307.08691, algorithm 2)."""

    def __init__(self, act):
        self.act = act

    def heads(self, flat, count):
        return flat.reshape(ROWS, LENGTH, count, SIZE).transpose(0, 2, 1, 3)

    @staticmethod
    def flat(x):
        return x.transpose(0, 2, 1, 3).reshape(ROWS * LENGTH, -1)

    def forward(self, qkv):
        q, k, v = np.split(qkv, [HEADS * SIZE, (HEADS + KV_HEADS) * SIZE], axis=1)
        self.q = self.act(rotate(self.heads(q, HEADS)))
        group = HEADS // KV_HEADS
        self.k = np.repeat(self.act(rotate(self.heads(k, KV_HEADS))), group, axis=1)
        self.v = np.repeat(self.heads(v, KV_HEADS), group, axis=1)
        scores = self.q @ self.k.swapaxes(2, 3) / math.sqrt(SIZE)
        scores = np.where(np.tri(LENGTH, dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        self.p = p / p.sum(-1, keepdims=True)
        self.out = self.act(self.p @ self.v)
        return self.flat(self.out)

    def backward(self, d_out):
        d_out = self.heads(d_out, HEADS)
        of_row = (d_out * self.out).sum(-1, keepdims=True)
        d_scores = self.p * (d_out @ self.v.swapaxes(2, 3) - of_row) / math.sqrt(SIZE)

        def of_group(d):
            return d.reshape(ROWS, KV_HEADS, -1, LENGTH, SIZE).sum(2)

        d_q = self.act(d_scores @ self.k)
        d_k = self.act(of_group(d_scores.swapaxes(2, 3) @ self.q))
        d_v = self.act(of_group(self.p.swapaxes(2, 3) @ d_out))
        parts = [self.act(rotate(d_q, True)), self.act(rotate(d_k, True)), d_v]
        return np.concatenate([self.flat(part) for part in parts], axis=1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Swiglu:
    """silu(gate) up, by the plan's rules for what is read in forward and in backward."""

    def __init__(self, plan):
        self.plan = plan

    def forward(self, inner):
        plan = self.plan
        read = plan.swiglu_forward(inner)
        gate, up = np.split(read, 2, axis=1)
        product = plan.act(plan.silu(gate * sigmoid(gate)) * up)
        self.gate, self.up = np.split(plan.swiglu_backward(inner), 2, axis=1)
        self.silu = plan.silu(self.gate * sigmoid(self.gate))
        again = plan.act(self.silu * self.up)
        return product, again

    def backward(self, d):
        s = sigmoid(self.gate)
        d_gate = d * self.up * s * (1 + self.gate * (1 - s))
        return self.plan.act(np.concatenate([d_gate, d * self.silu], axis=1))


class Mlp:
    """Two linear layers; `gradients` gets theirs, by name."""

    def __init__(self, plan, name, linears, gradients):
        self.plan, self.name, self.linears, self.gradients = plan, name, linears, gradients
        self.swiglu = Swiglu(plan)

    def forward(self, x):
        inner, self.saved_up = self.linears[f"{self.name}.up"].forward(x)
        product, again = self.swiglu.forward(inner)
        y, self.saved_down = self.linears[f"{self.name}.down"].forward(product)
        if self.plan.remakes_product:
            self.saved_down = again
        return y

    def backward(self, dy):
        inner = self.swiglu.backward(self.back("down", dy, self.saved_down))
        return self.back("up", inner, self.saved_up)

    def back(self, part, dy, saved):
        name = f"{self.name}.{part}"
        dx, self.gradients[f"{name}.weight"] = self.linears[name].backward(dy, saved)
        return dx


class Model:
    """The layers with their delayed scales, which live from step to step. `shape`: of experts."""

    def __init__(self, plan, layers, shape=None):
        self.plan, self.layers, self.shape = plan, layers, shape
        names = [name for name in [*WIDTHS, *mlp_widths(shape)] if name != "mlp.router"]
        self.linears = {f"layers.{i}.{name}": Linear(plan) for i in range(layers) for name in names}
        self.head = Linear(plan) if plan.scaled_head else PlainHead(plan.act)

    def step(self, values, batches):
        """values: of all parameters. Returns the mean loss and the gradients."""
        plan = self.plan
        for name, linear in self.linears.items():
            linear.set_weight(values[f"{name}.weight"])
        self.head.set_weight(values["head.weight"])
        total, gradients = 0.0, {}
        self.router_losses = np.zeros(2)
        self.loads = np.zeros((self.layers, self.shape.experts if self.shape else 0), np.int64)
        self.dropped = 0
        for tokens, targets in batches:
            share = 1 / (len(batches) * len(tokens))
            loss, parts = self.pass_over(values, tokens, targets, share * plan.loss_scale)
            total += loss * share
            for name, part in parts.items():
                sum_ = gradients.get(name, 0) + part / plan.loss_scale
                in_plan = name.removesuffix(".weight") in self.linears
                gradients[name] = plan.running_gradient(sum_) if in_plan else sum_
            self.end(lambda slot: slot.end_micro_batch())
        self.end(lambda slot: slot.end_step())
        self.router_losses *= 1 / (len(batches) * len(batches[0][0]))
        for name in self.linears:
            gradients[f"{name}.weight"] = plan.wire(gradients[f"{name}.weight"])
        return total, gradients

    def end(self, what):
        for linear in (*self.linears.values(), self.head):
            for slot in linear.slots.values():
                what(slot)

    def pass_over(self, values, tokens, targets, share):
        act, gradients, stack = self.plan.act, {}, []
        x = act(values["embedding.weight"][tokens])
        for i in range(self.layers):
            x, saved = self.block(f"layers.{i}.", values, x, gradients)
            stack.append(saved)
        norm = Norm(act)
        last = norm.forward(x, values["final_norm.weight"])
        logits, saved = self.head.forward(last)
        logits -= logits.max(1, keepdims=True)
        rows = np.arange(len(tokens))
        log_sum = np.log(np.exp(logits).sum(1))
        loss = (log_sum - logits[rows, targets]).sum()
        d = np.exp(logits - log_sum[:, None])
        d[rows, targets] -= 1
        d = act(d * share)
        d, gradients["head.weight"] = self.head.backward(d, saved)
        d, gradients["final_norm.weight"] = norm.backward(d)
        d = act(d)
        for i in reversed(range(self.layers)):
            d = self.block_backward(i, d, stack[i], gradients, share)
        gradients["embedding.weight"] = np.zeros((VOCABULARY, HIDDEN))
        np.add.at(gradients["embedding.weight"], tokens, d)
        return loss, gradients

    def mlp(self, name, gradients):
        return Mlp(self.plan, name, self.linears, gradients)

    def block(self, at, values, x, gradients):
        plan, linear = self.plan, self.linears
        norms = [Norm(plan.act), Norm(plan.act)]
        attention, saved = Attention(plan.act), {}

        def run(name, x):
            y, saved[name] = linear[at + name].forward(x)
            return y

        normed = norms[0].forward(plan.norm_input(x), values[at + "attention_norm.weight"])
        x = plan.act(x + run("attention.output", attention.forward(run("attention.qkv", normed))))
        normed = norms[1].forward(plan.norm_input(x), values[at + "mlp_norm.weight"])
        if self.shape is None:
            mlp = self.mlp(f"{at}mlp", gradients)
            y = mlp.forward(normed)
        else:
            names = [f"{at}mlp.experts.{i}" for i in range(self.shape.experts)]
            names += [f"{at}mlp.shared"] if self.shape.shared else []
            mlp = experts.Experts(self.shape, plan, [self.mlp(n, gradients) for n in names])
            router = [values.get(f"{at}mlp.router.{part}") for part in ("weight", "bias")]
            y = mlp.forward(normed, *router, LENGTH)
        return plan.act(x + y), (norms, attention, mlp, saved)

    def block_backward(self, layer, d, parts, gradients, share):
        at = f"layers.{layer}."
        norms, attention, mlp, saved = parts

        def back(name, dy):
            dx, gradients[f"{at}{name}.weight"] = self.linears[at + name].backward(dy, saved[name])
            return dx

        if self.shape is None:
            inner = mlp.backward(d)
        else:
            inner, gradients[f"{at}mlp.router.weight"] = mlp.backward(d, share)
            self.router_losses += mlp.router.losses()
            self.loads[layer] += mlp.router.loads
            stored = sum(len(tokens) for tokens, _ in mlp.router.tokens)
            self.dropped += sum(mlp.router.loads) - stored
        d_norm, gradients[at + "mlp_norm.weight"] = norms[1].backward(inner)
        d = self.plan.act(d + d_norm)
        inner = back("attention.qkv", attention.backward(back("attention.output", d)))
        d_norm, gradients[at + "attention_norm.weight"] = norms[0].backward(inner)
        return self.plan.act(d + d_norm)


def weights_of(step, layers, wide, shape=None):
    named = list(parameters(layers, shape))
    if shape and shape.biased:
        named += [(f"layers.{i}.mlp.router.bias", (shape.experts,)) for i in range(layers)]
    return {name: weights.value(step, name, size, wide) for name, size in named}
