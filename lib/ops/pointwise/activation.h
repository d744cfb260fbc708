#pragma once
// Activations of the MLPs. Element types fp32, bf16 or fp16, one for all views of a call;
// arithmetic fp32. `cast`: the result cast to FP8 too, or only that (see QuantizeSink).

#include "ops/cast/quantize.h"

namespace fp8train::ops {

/// y = silu(gate) * up, where gate_up: [rows, 2 F] holds gate then up; y: [rows, F]. `smoothing`
/// (may be empty): fp32 [F], powers of two that the channels of y are multiplied by before they are
/// rounded (ops/pointwise/smoothing.h). `silu_in_codes`: the product reads silu(gate) as store()
/// would hold it in saved_groups(), with a scale for each 16 channels of a row, the last of
/// which may have fewer (COAT, coat/activation/real_quantization/silu_fwd.py and mul_fwd.py).
void swiglu_forward(Stream stream, ConstView gate_up, View y, const QuantizeSink& cast = {},
                    ConstView smoothing = {}, bool silu_in_codes = false);
/// d_gate_up [rows, 2 F], the gradients of gate and up, from dy [rows, F]; may not alias gate_up.
/// `silu_in_codes`: the gradient of up reads silu(gate) from its codes too.
void swiglu_backward(Stream stream, ConstView dy, ConstView gate_up, View d_gate_up,
                     const QuantizeSink& cast = {}, bool silu_in_codes = false);

/// Computes GELU in its tanh form, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). x, y: same
/// shape.
void gelu_forward(Stream stream, ConstView x, View y, const QuantizeSink& cast = {});
/// dx = dy times the derivative of GELU at x. dy, x, dx: same shape.
void gelu_backward(Stream stream, ConstView dy, ConstView x, View dx,
                   const QuantizeSink& cast = {});

}  // namespace fp8train::ops
