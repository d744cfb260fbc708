"""What each plan rounds, from its source, and the departures from it that plan_sources.md names.

Sources, as repository@commit path:
  te-*           NVIDIA/TransformerEngine@d0067d0 transformer_engine/common/recipe/__init__.py,
                 pytorch/custom_recipes/reference_nvfp4.py
  torchao-*      pytorch/ao@36027d8 torchao/float8/config.py, float8_linear.py,
                 prototype/blockwise_fp8_training, prototype/moe_training/mxfp8_linear.py
  torchao-mxfp4  pytorch/ao@7bb7f06 torchao/prototype/mx_formats/mx_linear.py
  msamp-*        Azure/MS-AMP@9746ea8 msamp/nn/functional.py, msamp/nn/linear.py,
                 msamp/te/extension.py, msamp/common/tensor/tensor.py
  fp8-lm         arXiv 2310.18313
  deepseek-v3    arXiv 2412.19437, section 3.3; deepseek-ai/DeepSeek-V3@9b4e978 inference/kernel.py
  deepseek-v3.1  the same, act_quant_kernel with scale_fmt "ue8m0"
  llm.q          IST-DASLab/llmq@b77d969 src/kernels/quant.cu, src/models/llama_model.cpp
  coat           NVlabs/COAT@80ec99f coat/models/coat_llama.py, coat/activation/real_quantization
  int8-qat       pytorch/ao@36027d8 torchao/quantization/quant_api.py
  fp8-*          no source: docs/reference/plan_sources.md
"""

import dataclasses
import typing

import numpy as np

from . import formats
from .formats import Cast, Delayed, PerStep, bf16, fp16


def same(x):
    return x


def grouped(name, size, scale="fp32"):
    """A stored tensor with a scale for each `size` elements in a row."""
    cast = Cast(name, size, scale)

    def rounded(x):
        flat = np.asarray(x).reshape(1, -1)
        if name in formats.MINIFLOATS:
            return formats.quantized(cast, flat, 1).reshape(np.shape(x))
        parts = flat.reshape(-1, size)
        amax = np.abs(parts).max(1, keepdims=True)
        return in_fp16(parts, formats.scale_of(cast, amax)).reshape(np.shape(x))

    return rounded


def in_fp16(x, scale):
    return fp16(np.asarray(x, np.float32) * scale) / np.asarray(scale, np.float64)


def tensor_fp16(x):
    """[msamp] nn/linear.py: FP16 under a power of two."""
    return in_fp16(x, formats.scale_of(Cast("fp16", None, "pow2"), np.abs(x).max()))


def tensor_e4m3(x):
    return formats.quantized(Cast("e4m3", None, "pow2"), x, 1)


def coat_silu(x):
    """[coat] silu_fwd.py: fp32 SiLU in 1x16 codes, which mul_fwd.py reads in fp32. Here the bf16
    scale is rounded before it is used."""
    parts = np.asarray(x, np.float32).reshape(len(x), -1, 16)
    scale = bf16(np.abs(parts).max(2, keepdims=True) / np.float32(448)).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1))
    return (formats.nearest("e4m3", parts / scale) * scale).reshape(np.shape(x))


def coat_codes(x):
    """[coat] _quantize.py: the same, read in bf16 here."""
    return bf16(coat_silu(x))


def swiglu_128(scale):
    """arXiv 2412.19437, section 3.3.3: inputs of SwiGLU for the backward pass."""
    cast = Cast(block=128, scale=scale)
    return {
        "swiglu_backward": lambda x: bf16(formats.quantized(cast, x, 1)),
        "remakes_product": True,
    }


@dataclasses.dataclass
class Plan:
    """Operands of the three GEMMs and what else is rounded. None for wgrad_* or dgrad_w: the codes
    of the other GEMM that reads the tensor."""

    fprop_x: Cast
    fprop_w: Cast
    dgrad_dy: Cast
    dgrad_w: Cast | None = None
    wgrad_dy: Cast | None = None
    wgrad_x: Cast | None = None
    act: typing.Callable = bf16
    window: int = 1024
    stored_weight: typing.Callable = same
    running_gradient: typing.Callable = same  # after each micro-batch
    wire: typing.Callable = same  # after the last one
    norm_input: typing.Callable = same
    swiglu_forward: typing.Callable = same
    swiglu_backward: typing.Callable = same
    silu: typing.Callable = same
    remakes_product: bool = False
    straight_through: typing.Callable = same  # the codes of fprop as a plain GEMM reads them
    loss_scale: float = 1.0
    scaled_head: bool = False
    delayed: dict = dataclasses.field(default_factory=dict)  # for wrong oracles

    @property
    def has_history(self):
        return any(c.policy != "current" for c in (self.fprop_x, self.fprop_w, self.dgrad_dy))

    def slot(self, tensor, cast):
        kind = PerStep if cast.policy == "step" else Delayed
        return kind(cast, self.window, **self.delayed.get(tensor, self.delayed.get("all", {})))

    def but(self, **changes):
        return dataclasses.replace(self, **changes)


def plain(name):
    cast = Cast(name)
    return Plan(cast, cast, cast, wgrad_dy=cast, wgrad_x=cast, act=formats.ROUND[name])


E4M3, E5M2 = Cast(), Cast("e5m2")
TE_CURRENT = Plan(E4M3, E4M3, E5M2)
LATE, LATE_E5M2 = Cast(policy="delayed"), Cast("e5m2", policy="delayed")
TE_DELAYED = Plan(LATE, LATE, LATE_E5M2)


def blockwise(scale, epsilon=0.0, **other):
    vector = Cast(block=128, scale=scale, epsilon=epsilon)
    square = dataclasses.replace(vector, block=(128, 128))
    return Plan(vector, square, vector, wgrad_dy=vector, wgrad_x=vector, **other)


MX = Cast(block=32, scale="e8m0")
MXFP8 = Plan(MX, MX, MX, MX, MX, MX)
MX4 = Cast("e2m1", 32, "e8m0_floor")
MXFP4 = Plan(MX4, MX4, MX4, MX4, MX4, MX4, wire=bf16)
FOUR = Cast("e2m1", 16, "e4m3")
FOUR_TURNED = Cast("e2m1", 16, "e4m3", hadamard=True)
NVFP4 = Plan(FOUR, Cast("e2m1", (16, 16), "e4m3"), FOUR, None, FOUR_TURNED, FOUR_TURNED)
AO = Cast(epsilon=1e-12)
TENSORWISE = Plan(AO, AO, Cast("e5m2", epsilon=1e-12), wire=bf16)


def rowwise(scale):
    row = Cast(block="row", scale=scale, epsilon=1e-12)
    return Plan(row, row, row, row, row, row, wire=bf16)


def gw_hp():
    row, whole = Cast(block="row", scale="pow2", epsilon=1e-12), Cast(scale="pow2", epsilon=1e-12)
    return Plan(row, row, row, whole, Cast("bf16"), Cast("bf16"), wire=bf16)


WEIGHT = Cast(scale="pow2")
STEP = Cast(scale="pow2", policy="step")
STEP_E5M2 = Cast("e5m2", scale="pow2", policy="step")
# The gradient is a sum in 16 bits before it is E4M3 (functional.py: wgrad_qtype).
MSAMP = Plan(
    STEP, WEIGHT, STEP_E5M2, window=16, stored_weight=tensor_fp16, running_gradient=tensor_e4m3
)
MSAMP_TE = MSAMP.but(fprop_x=LATE, dgrad_dy=LATE_E5M2, window=1024)
DEEPSEEK = blockwise("fp32", wire=bf16, **swiglu_128("fp32"))
DEEPSEEK_31 = blockwise("pow2", wire=bf16, **swiglu_128("pow2"))  # all blocks
LLMQ = Cast(epsilon=1e-10)
COAT = TE_CURRENT.but(
    norm_input=coat_codes, swiglu_forward=coat_codes, swiglu_backward=coat_codes, silu=coat_silu
)
SAFE = blockwise("fp32", wire=grouped("e4m3", 128))
LEAN = SAFE.but(
    stored_weight=grouped("fp16", 128), running_gradient=bf16, wire=grouped("e4m3", 128, "pow2")
)
MIN = LEAN.but(running_gradient=grouped("e4m3", 128), wire=same)
BYTE = Cast("int8", "row")
INT8 = Plan(BYTE, BYTE, Cast("bf16"), None, None, None, wire=bf16, straight_through=bf16)

PLANS = {
    "fp32": plain("fp32"),
    "bf16": plain("bf16"),
    "fp16": plain("fp16").but(loss_scale=65536.0),
    "te-delayed": TE_DELAYED,
    "te-current": TE_CURRENT,
    "te-blockwise": blockwise("pow2"),
    "te-mxfp8": MXFP8,
    "te-nvfp4": NVFP4,
    "msamp-o1": MSAMP,
    "msamp-o2": MSAMP,
    "msamp-o3": MSAMP,
    "msamp-o1-te": MSAMP_TE,
    "msamp-o2-te": MSAMP_TE,
    "msamp-o3-te": MSAMP_TE,
    "torchao-tensorwise": TENSORWISE,
    "torchao-rowwise": rowwise("pow2"),
    "torchao-rowwise-gw-hp": gw_hp(),
    "torchao-blockwise": blockwise("fp32", 1e-12, wire=bf16),
    "torchao-mxfp8": MXFP8.but(wire=bf16),
    "torchao-mxfp4": MXFP4,
    "fp8-lm": MSAMP,
    "deepseek-v3": DEEPSEEK,
    "deepseek-v3.1": DEEPSEEK_31,
    "llm.q": Plan(LLMQ, LLMQ, LLMQ, stored_weight=bf16, running_gradient=bf16),
    "coat": COAT,
    "fp8-fast": TE_DELAYED.but(scaled_head=True, wire=bf16),
    "fp8-safe": SAFE,
    "fp8-lean": LEAN,
    "fp8-min": MIN,
    "int8-qat": INT8,
}
