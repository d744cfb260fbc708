#pragma once
// Smooth-SwiGLU (Fishman et al., arXiv 2409.12517, section 4.4): each channel i of the SwiGLU
// product a = silu(gate) * up is multiplied by a scale s_i before it is cast, and the down
// projection takes it out again:
//
//   fprop  y_j   = sum over i of Q(s_i a_i) Q(W_ji / s_i)      W / s is cast once per forward
//   dgrad  da_i  = sum over j of dy_j Q(W_ji)                  s does not appear
//   wgrad  dW_ji = (sum over rows of dy_j Q(s_i a_i)) / s_i    columns of the product are divided
//
// s_i is a power of two from the largest |up_i| of the micro-batch, so that no factor rounds
// anything. Where gate and up of a channel have grown aligned with a gain of 2^k, a has outliers of
// 2^(2k); s a and W / s have 2^k each.

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// scale[i] = 1 / max over rows of |up_i|, rounded up to a power of two (numeric/scale.h,
/// smoothing_scale). gate_up: [rows, 2 F], fp32, bf16 or fp16, gate then up; scale: fp32 [F].
void find_smoothing(Stream stream, ConstView gate_up, View scale);

/// y[r, i] = x[r, i] / scale[i], or with `add` y[r, i] += that; exact but for the sum, since scales
/// are powers of two. x, y: fp32 [rows, F], y may be x; scale: fp32 [F].
void divide_columns(Stream stream, ConstView x, ConstView scale, View y, bool add);

}  // namespace fp8train::ops
