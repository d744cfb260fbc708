#pragma once
// The operations that cast their result themselves, called in one way, for the tests on the cpu and
// on cuda.

#include "ops/norm/norm.h"
#include "ops/pointwise/activation.h"

namespace fp8train::test {

enum class Fused {
  rms_norm,
  layer_norm,
  biased_norm,
  swiglu,
  smooth_swiglu,
  swiglu_back,
  gelu,
  gelu_back
};

inline constexpr Fused kFused[] = {Fused::rms_norm, Fused::layer_norm,    Fused::biased_norm,
                                   Fused::swiglu,   Fused::smooth_swiglu, Fused::swiglu_back,
                                   Fused::gelu,     Fused::gelu_back};

inline bool is_norm(Fused fused) {
  return fused <= Fused::biased_norm;
}

/// Of a call on [rows, width]: x is twice as wide for swiglu, and so is the result of its gradient.
inline Shape input_shape(Fused fused, int64_t rows, int64_t width) {
  const bool pair =
      fused == Fused::swiglu || fused == Fused::smooth_swiglu || fused == Fused::swiglu_back;
  return {rows, pair ? 2 * width : width};
}
inline Shape result_shape(Fused fused, int64_t rows, int64_t width) {
  return {rows, fused == Fused::swiglu_back ? 2 * width : width};
}

struct FusedOperands {
  ConstView x;             ///< input_shape
  ConstView dy;            ///< [rows, width]
  ConstView weight, bias;  ///< fp32 [width]
  View mean, rstd;         ///< fp32 [rows]
};

inline void call(Fused fused, const Stream& stream, const FusedOperands& o, View y,
                 const ops::QuantizeSink& cast = {}) {
  constexpr float kEps = 1e-5F;
  switch (fused) {
    case Fused::rms_norm:
      return ops::norm_forward(
          stream,
          {.x = o.x, .weight = o.weight, .eps = kEps, .y = y, .rstd = o.rstd, .cast = cast});
    case Fused::layer_norm:
      return ops::norm_forward(stream, {.x = o.x,
                                        .weight = o.weight,
                                        .eps = kEps,
                                        .y = y,
                                        .mean = o.mean,
                                        .rstd = o.rstd,
                                        .cast = cast});
    case Fused::biased_norm:
      return ops::norm_forward(stream, {.x = o.x,
                                        .weight = o.weight,
                                        .bias = o.bias,
                                        .eps = kEps,
                                        .y = y,
                                        .mean = o.mean,
                                        .rstd = o.rstd,
                                        .cast = cast});
    case Fused::swiglu:
      return ops::swiglu_forward(stream, o.x, y, cast);
    case Fused::smooth_swiglu:
      return ops::swiglu_forward(stream, o.x, y, cast, o.weight);
    case Fused::swiglu_back:
      return ops::swiglu_backward(stream, o.dy, o.x, y, cast);
    case Fused::gelu:
      return ops::gelu_forward(stream, o.x, y, cast);
    case Fused::gelu_back:
      return ops::gelu_backward(stream, o.dy, o.x, y, cast);
  }
}

}  // namespace fp8train::test
