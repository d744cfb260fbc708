#pragma once
// Activations of the MLPs. Element types fp32, bf16 or fp16, one for all views of a call;
// arithmetic fp32.

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// y = silu(gate) * up, where gate_up: [rows, 2 F] holds gate then up; y: [rows, F].
void swiglu_forward(Stream stream, ConstView gate_up, View y);
/// d_gate_up from dy; may not alias gate_up.
void swiglu_backward(Stream stream, ConstView dy, ConstView gate_up, View d_gate_up);

/// The tanh form, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). x, y: same shape.
void gelu_forward(Stream stream, ConstView x, View y);
void gelu_backward(Stream stream, ConstView dy, ConstView x, View dx);

}  // namespace fp8train::ops
