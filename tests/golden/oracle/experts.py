"""A mixture of experts in place of the MLP of a block, with the gradients of its router by hand.

Sources:
  choice, weights  arXiv 2412.19437, section 2.1.2; huggingface/transformers 5.24
                   models/{mixtral,deepseek_v3}/modeling_*.py; of equal scores the lower index
  capacity         arXiv 2101.03961, section 2.2: tokens beyond it are dropped, in their order
  balance loss     arXiv 2412.19437, equations 17 to 20, for each sequence
  z loss           arXiv 2202.08906, equation 5
  biases           arXiv 2408.15664, algorithm 1
  [cublas]         cuBLAS documentation
"""

import dataclasses
import math

import numpy as np

from .formats import fp32


@dataclasses.dataclass(frozen=True)
class Shape:
    """The fields after `rate` are for wrong oracles."""

    experts: int
    per_token: int
    width: int
    shared: int = 0
    groups: int = 1
    groups_per_token: int = 1
    sigmoid: bool = False
    biased: bool = False
    scale: float = 1.0
    factor: float = 1.0  # of the capacity
    balance: float = 0.0
    z: float = 0.0
    rate: float = 0.0
    normalizes: bool = True
    first_of_equal: bool = True
    drops: bool = True
    drops_first: bool = False
    weighs_input: bool = False
    weighs_bias: bool = False
    by_sequence: bool = True
    share_of_choices: bool = True
    trains_router: bool = True

    def capacity(self, plan, rows):
        """A multiple of what wgrad contracts: 16 bytes of codes, or 32 elements where 16 or 32 have
        a scale ([cublas] "Narrow precision data types usage")."""
        blocks = [cast.block for cast in (plan.wgrad_x, plan.wgrad_dy) if cast is not None]
        multiple = 32 if any(block in (16, 32) for block in blocks) else 16
        wanted = min(math.ceil(self.factor * self.per_token * rows / self.experts), rows)
        wanted = wanted if self.drops else rows
        return math.ceil(max(wanted, 1) / multiple) * multiple

    def widths(self, hidden):
        """Name and shape of each weight, in the program's order."""
        yield "mlp.router", (self.experts, hidden)
        for i in range(self.experts):
            yield from mlp_widths(f"mlp.experts.{i}", self.width, hidden)
        if self.shared:
            yield from mlp_widths("mlp.shared", self.shared, hidden)


def mlp_widths(name, width, hidden):
    yield f"{name}.up", (2 * width, hidden)
    yield f"{name}.down", (hidden, width)


class Router:
    """Choices, slots and weights of the tokens of a micro-batch."""

    def __init__(self, shape, capacity, length):
        self.shape, self.capacity, self.length = shape, capacity, length

    def route(self, x, weight, bias):
        shape = self.shape
        self.x, self.weight = x, weight
        self.logits = fp32(x @ weight.T)
        self.soft = np.exp(self.logits - self.logits.max(1, keepdims=True))
        self.log_sum = np.log(self.soft.sum(1)) + self.logits.max(1)
        self.soft /= self.soft.sum(1, keepdims=True)
        self.scores = 1 / (1 + np.exp(-self.logits)) if shape.sigmoid else self.soft
        keys = fp32(fp32(self.scores) + bias) if shape.biased else fp32(self.scores)
        self.choose(keys)
        weighed = keys if shape.weighs_bias else self.scores
        self.picked = np.take_along_axis(weighed, self.chosen, 1)
        self.sum = self.picked.sum(1, keepdims=True) if shape.normalizes else 1.0
        self.weights = self.picked / self.sum * shape.scale
        self.assign()

    def choose(self, keys):
        shape, rows = self.shape, len(keys)
        if shape.groups > 1:
            groups = keys.reshape(rows, shape.groups, -1)
            best = fp32(np.sort(groups, 2)[:, :, -2:].sum(2))
            order = np.argsort(-best, 1, kind="stable")
            out = order[:, shape.groups_per_token :]
            keys = groups.copy()
            np.put_along_axis(keys, out[:, :, None], -np.inf, 1)
            keys = keys.reshape(rows, -1)
        if shape.first_of_equal:
            order = np.argsort(-keys, 1, kind="stable")
        else:
            order = shape.experts - 1 - np.argsort(-keys[:, ::-1], 1, kind="stable")
        self.chosen = order[:, : shape.per_token]

    def assign(self):
        """Of each expert the tokens that it has, in their order, and their positions among the
        choices of the token."""
        shape = self.shape
        self.tokens, self.loads = [], []
        for expert in range(shape.experts):
            rows, position = np.nonzero(self.chosen == expert)
            self.loads.append(len(rows))
            first = max(len(rows) - self.capacity, 0) if shape.drops_first else 0
            stored = slice(first, first + self.capacity)
            self.tokens.append((rows[stored], position[stored]))

    def shares(self):
        """f of each token: the share of each expert in the choices of its sequence, times E."""
        shape, rows = self.shape, len(self.chosen)
        length = self.length if shape.by_sequence else rows
        counts = np.zeros((rows // length, shape.experts))
        np.add.at(counts, (np.arange(rows)[:, None] // length, self.chosen), 1)
        if not shape.share_of_choices:
            counts *= shape.per_token
        return np.repeat(counts * shape.experts / (shape.per_token * length), length, 0)

    def losses(self):
        """The sums of the balance loss and of the z loss over the tokens."""
        own = self.scores / self.scores.sum(1, keepdims=True)
        balance = self.shape.balance * (self.shares() * own).sum()
        return balance, self.shape.z * (self.log_sum**2).sum()

    def backward(self, d_weights, share):
        """The gradient of the logits. `share`: the factor of the router's own losses."""
        shape = self.shape
        d = d_weights * shape.scale
        if shape.normalizes:
            d = (d - (d * self.picked / self.sum).sum(1, keepdims=True)) / self.sum
        d_scores = np.zeros_like(self.scores)
        np.put_along_axis(d_scores, self.chosen, d, 1)
        whole = self.scores.sum(1, keepdims=True)
        f = self.shares() * shape.balance * share
        d_scores += (f - (f * self.scores).sum(1, keepdims=True) / whole) / whole
        if shape.sigmoid:
            d_logits = d_scores * self.scores * (1 - self.scores)
        else:
            d_logits = self.scores * (
                d_scores - (d_scores * self.scores).sum(1, keepdims=True)
            )
        return d_logits + 2 * shape.z * share * self.log_sum[:, None] * self.soft


class Experts:
    """The layer: `mlps` has those of experts, and after them the shared one. They are called with
    the name of their values."""

    def __init__(self, shape, plan, mlps):
        self.shape, self.plan, self.mlps = shape, plan, mlps

    def forward(self, x, weight, bias, length):
        shape, act = self.shape, self.plan.act
        capacity = shape.capacity(self.plan, len(x))
        self.router = Router(shape, capacity, length)
        self.router.route(x, weight, bias)
        y = self.mlps[-1].forward(x) if shape.shared else np.zeros_like(x)
        self.outputs = []
        for mlp, (tokens, position) in zip(self.mlps, self.router.tokens):
            rows = np.zeros((capacity, x.shape[1]))
            weights = self.router.weights[tokens, position][:, None]
            rows[: len(tokens)] = act(x[tokens] * weights) if shape.weighs_input else x[tokens]
            self.outputs.append(mlp.forward(rows)[: len(tokens)])
            y[tokens] += self.outputs[-1] * (1.0 if shape.weighs_input else weights)
        return act(y)

    def backward(self, dy, share):
        """The gradients of x and of the router's weight."""
        shape, act, router = self.shape, self.plan.act, self.router
        dx = self.mlps[-1].backward(dy) if shape.shared else np.zeros_like(dy)
        d_weights = np.zeros(router.chosen.shape)
        capacity = shape.capacity(self.plan, len(dy))
        for mlp, out, (tokens, position) in zip(self.mlps, self.outputs, router.tokens):
            d_weights[tokens, position] = (dy[tokens] * out).sum(1)
            rows = np.zeros((capacity, dy.shape[1]))
            rows[: len(tokens)] = act(dy[tokens] * router.weights[tokens, position][:, None])
            dx[tokens] += mlp.backward(rows)[: len(tokens)]
        d_logits = router.backward(d_weights if shape.trains_router else 0 * d_weights, share)
        return act(dx + d_logits @ router.weight), d_logits.T @ router.x


def moved(bias, loads, rate):
    """The biases after a step."""
    mean = np.mean(loads)
    return fp32(bias + np.float32(rate).astype(np.float64) * np.sign(mean - np.asarray(loads)))
