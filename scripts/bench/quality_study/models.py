"""The models of the study, how they are trained, and the plans in the order in which they run."""

import dataclasses

# In the order in which they are to be run where time is short.
PLANS = ["te-delayed", "te-current", "te-blockwise", "torchao-rowwise", "msamp-o2", "deepseek-v3",
         "coat", "fp8-lean"]

BASELINE = "bf16"
# bf16 again, with each batch in two halves: the same arithmetic with sums in another order. Its gap
# is what chance alone gives.
CONTROL = "bf16-halves"

SEQUENCE = 64  # tokens
EVALUATIONS = 5  # checkpoints at the end of a run whose losses are averaged


@dataclasses.dataclass(frozen=True)
class Model:
    """A model and its recipe. A base run has `base_steps` steps at a constant learning rate, its
    branches `steps` more, over which the rate falls linearly to 0."""

    name: str
    shape: dict
    micro_batch: int
    lr: float
    base_steps: int
    steps: int
    eval_spacing: int  # steps between the last evaluations
    eval_tokens: int  # of the held-out text, from its beginning
    outlier_tokens: int  # of it, where bases with outliers are evaluated

    @property
    def last_step(self):
        return self.base_steps + self.steps


def llama(width, layers, heads, kv_heads, ff):
    return {"model.hidden_size": width, "model.num_hidden_layers": layers,
            "model.num_attention_heads": heads, "model.num_key_value_heads": kv_heads,
            "model.intermediate_size": ff, "model.max_position_embeddings": SEQUENCE,
            "model.tie_word_embeddings": "true"}


# Every width is a multiple of 128, so that every product of every plan runs scaled.
MODELS = {model.name: model for model in [
    Model("llama-128", llama(128, 4, 4, 2, 384), 12, 1e-3, 500, 300, 15, 40_000, 4_000),
    Model("llama-512", llama(512, 2, 8, 2, 1024), 6, 1e-3, 250, 100, 5, 20_000, 4_000),
]}


def recipe(model, text, seed, folder):
    """The settings that base runs and branches share."""
    return {**model.shape, "data.train": f"[{{path: {text}}}]", "data.tokenizer": "char",
            "data.seq_length": SEQUENCE, "optimizer.lr": model.lr,
            "optimizer.betas": "[0.9, 0.99]", "optimizer.weight_decay": 0.1,
            "optimizer.grad_clip": 1.0, "scheduler.warmup_steps": 50, "training.seed": seed,
            "logging.interval": 100, "threads": 1, "device": "cpu", "output_dir": folder}


def base_settings(model, text, seed, folder):
    return recipe(model, text, seed, folder) | {
        "precision.plan": BASELINE, "training.micro_batch_size": model.micro_batch,
        "training.max_steps": model.base_steps, "scheduler.type": "constant",
        "checkpoint.resume": "never"}


def branch_settings(model, text, seed, folder, plan, checkpoint):
    halves = plan == CONTROL
    return recipe(model, text, seed, folder) | {
        "precision.plan": BASELINE if halves else plan,
        "training.micro_batch_size": model.micro_batch // 2 if halves else model.micro_batch,
        "training.gradient_accumulation_steps": 2 if halves else 1,
        "training.max_steps": model.last_step, "scheduler.type": "wsd",
        "scheduler.decay_steps": model.steps, "checkpoint.resume": checkpoint,
        "checkpoint.changed_plan": "accept", "checkpoint.interval": model.eval_spacing,
        "checkpoint.keep_last": EVALUATIONS}


def evaluation_plan(plan):
    """The plan whose products the evaluation of a run runs in, as it was trained."""
    return BASELINE if plan in (BASELINE, CONTROL) else plan
