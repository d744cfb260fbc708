"""The runs that are compared with the program, and the wrong oracles that it must differ from."""

import dataclasses

from .experts import Shape
from .formats import Cast, fp32
from .plans import PLANS, Plan, blockwise, grouped, rowwise, same

NEAREST_DY = {"dgrad_dy": "e2m1 1x16 e4m3", "wgrad_dy": "e2m1 1x16 e4m3 hadamard"}


@dataclasses.dataclass
class Case:
    """`request` is what the program is asked for."""

    name: str
    plan: Plan
    request: dict
    steps: int = 10
    micro_batches: int = 1
    layers: int = 1
    wide: bool = False
    experts: Shape | None = None

    def same_steps(self, other):
        """Whether the oracle's steps are the same, whatever the program is asked for."""
        return dataclasses.replace(self, name="", request={}) == dataclasses.replace(
            other, name="", request={}
        )


def cases():
    for name, plan in PLANS.items():
        request = {"plan": name} | ({"roles": NEAREST_DY} if name == "te-nvfp4" else {})
        # In the first steps of llm.q more codes differ by chance than in others.
        yield Case(name, plan, request, 32 if name == "llm.q" else 16)
    for name in ("te-blockwise", "torchao-rowwise"):
        plan = blockwise("fp32") if name == "te-blockwise" else rowwise("fp32")
        yield Case(f"{name}, fp32 scales", plan, {"plan": name, "power_2_scale": False})
    for name in ("te-blockwise", "torchao-rowwise", "torchao-rowwise-gw-hp", "te-mxfp8"):
        yield Case(f"{name}, wide", PLANS[name], {"plan": name}, wide=True)
    yield from nvfp4_options()
    for length in (1, 3):
        plan = PLANS["te-delayed"].but(window=length)
        request = {"plan": "te-delayed", "history": length}
        yield Case(f"te-delayed, window of {length}", plan, request, 12, 2, 2)
    plan = PLANS["msamp-o1"].but(window=3)
    request = {"plan": "msamp-o1", "history": 3}
    yield Case("msamp-o1, window of 3", plan, request, 12, 4)
    for name in ("msamp-o1", "msamp-o1-te"):
        yield Case(f"{name}, two micro-batches", PLANS[name], {"plan": name}, 24, 2)
    for name in ("bf16", "fp16", "torchao-rowwise", "deepseek-v3", "fp8-lean", "fp8-min"):
        yield Case(f"{name}, two micro-batches", PLANS[name], {"plan": name}, micro_batches=2)


def replaced(plan, cast_of, **fields):
    """The plan with other fields in the casts of some operands."""
    changes = {name: dataclasses.replace(getattr(plan, name), **fields) for name in cast_of}
    return plan.but(**changes)


TENSORS = ("fprop_x", "fprop_w", "dgrad_dy")  # whose codes both GEMMs read
VECTORS = ("fprop_x", "dgrad_dy", "wgrad_dy", "wgrad_x")
SQUARE_W = VECTORS + ("fprop_w",)
OPERANDS = TENSORS + ("dgrad_w", "wgrad_dy", "wgrad_x")


FOUR_OF_W, FOUR_OF_ROWS = "te-nvfp4, 4over6 of weights", "te-nvfp4, 4over6 of rows of x"
NEAREST_FOUR = dict.fromkeys(("dgrad_dy", "wgrad_dy"), "e2m1 1x16 e4m3")


def nvfp4_options():
    """TransformerEngine's nvfp4_4over6 and row_scaled_activation, in blocks of 1x16 and, for x,
    without its transform. In squares the second candidate of 4over6 nearly never wins."""
    plan, plain = PLANS["te-nvfp4"], PLANS["te-nvfp4"].fprop_x
    vector = dict.fromkeys(("fprop_w", "dgrad_w"), "e2m1 1x16 e4m3_4over6")
    w = dataclasses.replace(plain, four_over_six="MAE", bound=256)
    yield Case(FOUR_OF_W, plan.but(fprop_w=w, dgrad_w=w), roles_of(NEAREST_DY | vector))
    row = dict.fromkeys(("fprop_x", "wgrad_x"), "e2m1 1x16 e4m3_4over6_mse row_scaled")
    x = dataclasses.replace(plain, four_over_six="MSE", bound=256, by_row=True)
    plan = plan.but(fprop_x=x, wgrad_x=x, wgrad_dy=plain)
    yield Case(FOUR_OF_ROWS, plan, roles_of(NEAREST_FOUR | row))


def roles_of(roles):
    return {"plan": "te-nvfp4", "roles": roles}


def casts(operands, **fields):
    return lambda plan: replaced(plan, operands, **fields)


def but(**changes):
    return lambda plan: plan.but(**changes)


def windows(**arguments):
    return but(delayed={"all": arguments})


def instead(name):
    return lambda plan: PLANS[name]


def rounded_once(plan):
    return plan.but(running_gradient=same, wire=plan.running_gradient)


BLOCKS_FP32, ROWS_FP32 = "te-blockwise, fp32 scales", "torchao-rowwise, fp32 scales"
GW_HP, GW_HP_WIDE = "torchao-rowwise-gw-hp", "torchao-rowwise-gw-hp, wide"
TE_3, MSAMP_3, MSAMP_16 = (
    "te-delayed, window of 3",
    "msamp-o1, window of 3",
    "msamp-o1, two micro-batches",
)

# Under powers of two another axis changes few codes, hence the scales in fp32 and the wide weights.
OTHER_AXIS = {
    BLOCKS_FP32: VECTORS,
    ROWS_FP32: OPERANDS,
    "te-blockwise, wide": VECTORS,
    "torchao-rowwise, wide": OPERANDS,
    GW_HP_WIDE: TENSORS,
    "te-mxfp8, wide": OPERANDS,
    "te-nvfp4": VECTORS,
    "torchao-mxfp4": OPERANDS,
    "deepseek-v3": VECTORS,
    "int8-qat": ("fprop_x", "fprop_w"),
}

# Cases, the rule that is broken, the plan that breaks it.
FORMATS = [
    (
        ("te-current", "te-delayed", "torchao-tensorwise", "coat", "msamp-o1", "msamp-o1-te"),
        "dy in E4M3",
        casts(("dgrad_dy",), format="e4m3"),
    ),
    (("llm.q",), "dy in E5M2", casts(("dgrad_dy",), format="e5m2")),
    (
        ("te-blockwise", "te-mxfp8", "torchao-rowwise", "deepseek-v3"),
        "dy in E5M2",
        casts(("dgrad_dy", "wgrad_dy"), format="e5m2"),
    ),
]
POWERS, FP32_SCALES = "powers of two", "fp32 scales"
SCALES = [
    (
        ("te-current", "te-delayed", "torchao-tensorwise", "coat"),
        POWERS,
        casts(TENSORS, scale="pow2"),
    ),
    (("deepseek-v3",), POWERS, casts(SQUARE_W, scale="pow2")),
    (("te-blockwise",), FP32_SCALES, casts(SQUARE_W, scale="fp32")),
    (("torchao-rowwise", "te-mxfp8"), FP32_SCALES, casts(OPERANDS, scale="fp32")),
    (("msamp-o1",), FP32_SCALES, casts(TENSORS, scale="fp32")),
    (("deepseek-v3.1",), FP32_SCALES, instead("deepseek-v3")),
    (("te-mxfp8",), "scales rounded down", casts(OPERANDS, scale="e8m0_floor")),
    (("torchao-mxfp4",), "scales rounded up", casts(OPERANDS, scale="e8m0")),
    (("torchao-mxfp4",), "scales in e4m3", casts(OPERANDS, scale="e4m3")),
    ((FOUR_OF_W,), "errors squared", casts(("fprop_w", "dgrad_w"), four_over_six="MSE")),
    ((FOUR_OF_W,), "a bound of 448", casts(("fprop_w", "dgrad_w"), bound=448)),
    ((FOUR_OF_W,), "one candidate", casts(("fprop_w", "dgrad_w"), four_over_six="")),
    ((FOUR_OF_ROWS,), "errors not squared", casts(("fprop_x", "wgrad_x"), four_over_six="MAE")),
    ((FOUR_OF_ROWS,), "one scale of the tensor", casts(("fprop_x", "wgrad_x"), by_row=False)),
    (("te-nvfp4",), "no scale of the tensor", casts(SQUARE_W, global_one=True)),
    (("te-nvfp4",), "fp32 scales of blocks", casts(SQUARE_W, scale="fp32")),
]
VECTOR = Cast(block=128)
BLOCKS = [
    (("te-blockwise, wide",), "x with one scale", casts(("fprop_x",), block=None)),
    ((BLOCKS_FP32, "deepseek-v3"), "w 1x128", but(fprop_w=VECTOR, dgrad_w=VECTOR)),
    ((BLOCKS_FP32, "deepseek-v3"), "x 128x128", casts(("fprop_x", "wgrad_x"), block=(128, 128))),
    ((BLOCKS_FP32, "deepseek-v3"), "wgrad's x from fprop's codes", but(wgrad_x=None)),
    ((BLOCKS_FP32, "deepseek-v3"), "wgrad's dy from dgrad's codes", but(wgrad_dy=None)),
    (("te-nvfp4",), "w 1x16", lambda p: p.but(fprop_w=p.fprop_x, dgrad_w=p.fprop_x)),
    (
        ("te-nvfp4",),
        "wgrad not transformed",
        lambda p: p.but(wgrad_dy=p.fprop_x, wgrad_x=p.fprop_x),
    ),
    (("te-nvfp4",), "fprop transformed", lambda p: p.but(fprop_x=p.wgrad_x)),
    (("te-mxfp8, wide", "torchao-mxfp4"), "blocks of 16", casts(OPERANDS, block=16)),
    (("torchao-mxfp4",), "wgrad's x from fprop's codes", but(wgrad_x=None)),
    ((GW_HP_WIDE,), "dgrad's w by rows", lambda p: p.but(dgrad_w=p.fprop_w)),
    ((GW_HP,), "wgrad in FP8", instead("torchao-rowwise")),
    (("int8-qat",), "w with one scale", casts(("fprop_w",), block=None)),
    (("int8-qat",), "x with one scale", casts(("fprop_x",), block=None)),
    (("int8-qat",), "backward without codes", but(dgrad_w=Cast("bf16"), wgrad_x=Cast("bf16"))),
]
WINDOWS = [
    ((TE_3, MSAMP_3), "a window of 2", but(window=2)),
    ((TE_3, MSAMP_3), "a window of 4", but(window=4)),
    ((MSAMP_16,), "a window of 15", but(window=15)),
    ((TE_3, MSAMP_16), "current scales", casts(TENSORS, policy="current")),
    ((TE_3,), "the weight's scale current", casts(("fprop_w",), policy="current")),
    (("te-current",), "delayed scales", casts(TENSORS, policy="delayed")),
    (
        ("msamp-o1-te, two micro-batches",),
        "w delayed",
        casts(("fprop_w",), policy="delayed", scale="fp32"),
    ),
    ((TE_3,), "the newest amax left out", windows(newest=False)),
    ((TE_3,), "the most recent amax alone", windows(pick=lambda window: window[-1])),
    ((TE_3,), "a window of steps", windows(per_step=True)),
    ((TE_3,), "the first scale current", windows(first_is_current=True)),
    ((TE_3,), "the weight's scale a step late", but(delayed={"w": {"newest": False}})),
    ((MSAMP_16, MSAMP_3), "a window of micro-batches", windows(per_step=False)),
    ((MSAMP_16,), "delayed from the first step", windows(warms_up=False)),
    ((MSAMP_3,), "all micro-batches in the first window", windows(combines=True)),
]
STORED = [
    (("msamp-o1",), "the weight not in FP16", but(stored_weight=same)),
    (("llm.q",), "the weight not in bf16", but(stored_weight=same)),
    (("fp8-lean",), "an fp32 master", but(stored_weight=same)),
    (("msamp-o1",), "the gradient not in E4M3", but(running_gradient=same)),
    (
        ("msamp-o1",),
        "the gradient under an fp32 scale",
        but(running_gradient=grouped("e4m3", 16384)),
    ),
    ((MSAMP_16, "fp8-min, two micro-batches"), "the gradient rounded once", rounded_once),
    (("torchao-rowwise", "deepseek-v3", "int8-qat"), "an fp32 wire", but(wire=same)),
    (("fp8-fast",), "an fp32 wire", but(wire=same)),
    (("fp8-fast",), "a head in bf16", but(scaled_head=False)),
    (("fp8-safe",), "groups of 256 on the wire", but(wire=grouped("e4m3", 256))),
    (("fp8-safe",), "a wire of powers of two", but(wire=grouped("e4m3", 128, "pow2"))),
    (("fp8-lean",), "a wire of fp32 scales", but(wire=grouped("e4m3", 128))),
]
ACTIVATIONS = [
    (("bf16", "te-current"), "fp32 activations", but(act=fp32)),
    (("fp16",), "no loss scale", but(loss_scale=1.0)),
    (("fp16",), "bf16", instead("bf16")),
    (("deepseek-v3",), "inputs of SwiGLU in bf16", but(swiglu_backward=same)),
    (
        ("deepseek-v3",),
        "inputs of SwiGLU read in forward",
        lambda p: p.but(swiglu_forward=p.swiglu_backward),
    ),
    (("deepseek-v3",), "the product not made again", but(remakes_product=False)),
    (
        ("coat",),
        "a bf16 forward pass",
        but(norm_input=same, swiglu_forward=same, swiglu_backward=same, silu=same),
    ),
    (("coat",), "SwiGLU reads codes in backward alone", but(swiglu_forward=same)),
    (("coat",), "norms read bf16", but(norm_input=same)),
    (("coat",), "silu not coded", but(silu=same)),
    (("coat",), "silu's codes read in bf16", lambda p: p.but(silu=p.norm_input)),
]


def wrong():
    """Name of a case, the rule that is broken, the plan that breaks it."""
    plans = {case.name: case.plan for case in cases()}
    for name, operands in OTHER_AXIS.items():
        for operand in operands:
            plan = replaced(plans[name], (operand,), wrong_axis=True)
            yield name, f"{operand} along the other axis", plan
    for names, rule, change in FORMATS + SCALES + BLOCKS + WINDOWS + STORED + ACTIVATIONS:
        for name in names:
            yield name, rule, change(plans[name])


def keys_of(shape):
    """The experts as the program is asked for them."""
    names = (
        "experts", "per_token", "width", "shared", "groups", "groups_per_token", "sigmoid",
        "biased", "scale", "factor", "balance", "z", "rate",
    )  # fmt: skip
    return {"experts": {name: getattr(shape, name) for name in names}}


MIXTRAL = Shape(4, 2, 128, factor=0.8, balance=0.03, z=0.003)
DEEPSEEK = Shape(
    8, 2, 128, shared=128, groups=4, groups_per_token=2, sigmoid=True, biased=True, scale=2.5,
    factor=0.8, balance=0.03, rate=0.01,
)  # fmt: skip
SOFTMAX_PLANS = (
    "fp32", "bf16", "fp16", "te-delayed", "te-current", "te-blockwise", "te-mxfp8", "te-nvfp4",
    "torchao-tensorwise", "torchao-rowwise", "deepseek-v3", "fp8-safe", "int8-qat",
)  # fmt: skip
SIGMOID_PLANS = ("bf16", "te-delayed", "te-current", "te-mxfp8", "deepseek-v3", "deepseek-v3.1")


def expert_cases():
    for name in SOFTMAX_PLANS:
        request = {"plan": name} | ({"roles": NEAREST_DY} if name == "te-nvfp4" else {})
        yield Case(f"{name}, experts", PLANS[name], request | keys_of(MIXTRAL), experts=MIXTRAL)
    for name in SIGMOID_PLANS:
        request = {"plan": name} | keys_of(DEEPSEEK)
        yield Case(f"{name}, groups and biases", PLANS[name], request, experts=DEEPSEEK)
    for name in ("te-delayed", "deepseek-v3"):
        request = {"plan": name} | keys_of(DEEPSEEK)
        yield Case(
            f"{name}, experts in two layers", PLANS[name], request, 10, 2, 2, experts=DEEPSEEK
        )


WRONG_ROUTING = [
    ("nothing dropped", dict(drops=False)),
    ("the first tokens dropped", dict(drops_first=True)),
    ("weights not divided by their sum", dict(normalizes=False)),
    ("weights on the input", dict(weighs_input=True)),
    ("no balance loss", dict(balance=0.0)),
    ("loads of the batch", dict(by_sequence=False)),
    ("loads that are not shares", dict(share_of_choices=False)),
    ("the router trained by its losses alone", dict(trains_router=False)),
]
WRONG_GROUPS = [
    ("all groups", dict(groups=1, groups_per_token=1)),
    ("soft-max", dict(sigmoid=False)),
    ("no biases", dict(biased=False)),
    ("biases in the weights", dict(weighs_bias=True)),
    ("no factor", dict(scale=1.0)),
]


def wrong_experts():
    """As wrong(), with the shape of the experts."""
    softmax = WRONG_ROUTING + [
        ("of equal scores the last", dict(first_of_equal=False)),
        ("no z loss", dict(z=0.0)),
        ("sigmoids", dict(sigmoid=True)),
    ]
    for case in expert_cases():
        if case.name in ("bf16, experts", "deepseek-v3, experts"):
            rules = softmax
        elif case.name == "te-delayed, groups and biases":
            rules = WRONG_ROUTING + WRONG_GROUPS
        else:
            continue
        for rule, change in rules:
            yield case.name, rule, (case.plan, dataclasses.replace(case.experts, **change))
