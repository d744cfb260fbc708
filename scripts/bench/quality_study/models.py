"""The models of the study, how they are trained, and the branches in the order of their runs."""

import dataclasses

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

BASELINE = "bf16"


@dataclasses.dataclass(frozen=True)
class Branch:
    """A continuation of a base. The plan is that of its products, in training and evaluation."""

    plan: str
    micro_batches: int = 1  # of a step, which has the same sequences in any number of them
    settings: dict = dataclasses.field(default_factory=dict)
    # of the first step only; afterwards the products are in bf16, as in evaluation
    first_step_only: bool = False

    @property
    def evaluation_plan(self):
        return BASELINE if self.first_step_only else self.plan


# bf16 three times, with sums in another order: their mean is what plans are compared with.
REPLICATES = [BASELINE, "bf16-halves", "bf16-thirds"]
# One step of casts to E4M3 and E5M2, and then bf16: chance that begins as large as a cast.
CONTROL = "bf16-kicked"
# The contrast named before the runs: the mean of these plans against that of REPLICATES.
FP8 = ["te-delayed", "te-current", "te-blockwise", "te-mxfp8", "torchao-rowwise", "msamp-o2",
       "deepseek-v3", "coat", "fp8-lean"]
# The same plan twice, the short accumulator of Hopper's tensor cores, and four bits.
OTHERS = ["te-current-halves", "te-current-14-bit", "te-nvfp4"]
# In the order in which they are to be run where time is short.
PLANS = [*REPLICATES[1:], CONTROL, *FP8, *OTHERS]

VARIANTS = {
    "bf16-halves": Branch(BASELINE, micro_batches=2),
    "bf16-thirds": Branch(BASELINE, micro_batches=3),
    "bf16-kicked": Branch("te-current", first_step_only=True),
    "te-current-halves": Branch("te-current", micro_batches=2),
    "te-current-14-bit": Branch("te-current", settings={"precision.accumulation": "emulated"}),
}


def branch_of(name):
    return VARIANTS.get(name) or Branch(name)


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


def branch_settings(model, text, seed, folder, name, checkpoint):
    branch = branch_of(name)
    stages = f"[{{until: {model.base_steps + 1}, plan: {branch.plan}}}, {{plan: {BASELINE}}}]"
    return recipe(model, text, seed, folder) | {
        "precision.plan": branch.plan,
        "training.micro_batch_size": model.micro_batch // branch.micro_batches,
        "training.gradient_accumulation_steps": branch.micro_batches,
        "training.max_steps": model.last_step, "scheduler.type": "wsd",
        "scheduler.decay_steps": model.steps, "checkpoint.resume": checkpoint,
        "checkpoint.changed_plan": "accept", "checkpoint.interval": model.eval_spacing,
        "checkpoint.keep_last": EVALUATIONS} | branch.settings | (
            {"precision.schedule": stages} if branch.first_step_only else {})
