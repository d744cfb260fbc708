// Activations of the MLPs, by the functions of fast_math.cuh: within their bounds of what the cpu
// computes. With or without a cast they are the kernel of cast_tiles.cuh, so that a cast inside and
// one that follows see the same values.

#include "ops/dispatch/cuda_operations.h"
#include "ops/pointwise/activation_cast.cuh"

namespace fp8train::ops::cuda {
namespace {

/// Starts the kernel of swiglu_forward() for these forms. Smoothed, Encoded: as in the source.
template <bool Smoothed, bool Encoded>
void swiglu_forward_as(const Stream& stream, const ConstView& gate_up, const View& y,
                       const QuantizeSink& cast, const float* smoothing) {
  const int64_t width = y.shape.back();
  const bool aligned = is_aligned(gate_up.data) && is_aligned(smoothing);
  with_float_type(y.dtype, [&]<typename T>(TypeTag<T>) {
    const SwigluForwardSource<T, Smoothed, Encoded> source(gate_up.as<T>(), width, smoothing);
    cast_tiles(
        stream, source,
        {.rows = y.shape.rows(), .width = width, .sink = cast, .aligned = aligned, .y = y.data});
  });
}

/// Starts the kernel of swiglu_backward() for these forms. Encoded: as in the source.
template <bool Encoded>
void swiglu_backward_as(const Stream& stream, const ConstView& dy, const ConstView& gate_up,
                        const View& d_gate_up, const QuantizeSink& cast) {
  const int64_t width = dy.shape.back();
  with_float_type(dy.dtype, [&]<typename T>(TypeTag<T>) {
    const SwigluBackwardSource<T, Encoded> source(dy.as<T>(), gate_up.as<T>(), width);
    const bool aligned = is_aligned(dy.data) && is_aligned(gate_up.data);
    cast_tiles(stream, source,
               {.rows = dy.shape.rows(),
                .width = width,
                .sink = cast,
                .aligned = aligned,
                .y = d_gate_up.data});
  });
}

}  // namespace

void swiglu_forward(Stream stream, ConstView gate_up, View y, const QuantizeSink& cast,
                    ConstView smoothing, bool silu_in_codes) {
  const auto* scale = smoothing.as<float>();
  if (scale != nullptr) {
    (silu_in_codes ? swiglu_forward_as<true, true>
                   : swiglu_forward_as<true, false>)(stream, gate_up, y, cast, scale);
    return;
  }
  (silu_in_codes ? swiglu_forward_as<false, true>
                 : swiglu_forward_as<false, false>)(stream, gate_up, y, cast, nullptr);
}

void swiglu_backward(Stream stream, ConstView dy, ConstView gate_up, View d_gate_up,
                     const QuantizeSink& cast, bool silu_in_codes) {
  (silu_in_codes ? swiglu_backward_as<true> : swiglu_backward_as<false>)(stream, dy, gate_up,
                                                                         d_gate_up, cast);
}

void gelu_forward(Stream stream, ConstView x, View y, const QuantizeSink& cast) {
  const int64_t width = y.shape.back();
  with_float_type(x.dtype, [&]<typename T>(TypeTag<T>) {
    cast_tiles(stream, GeluForwardSource<T>(x.as<T>(), width),
               {.rows = y.shape.rows(),
                .width = width,
                .sink = cast,
                .aligned = is_aligned(x.data),
                .y = y.data});
  });
}

void gelu_backward(Stream stream, ConstView dy, ConstView x, View dx, const QuantizeSink& cast) {
  const int64_t width = dx.shape.back();
  with_float_type(x.dtype, [&]<typename T>(TypeTag<T>) {
    const bool aligned = is_aligned(dy.data) && is_aligned(x.data);
    cast_tiles(
        stream, GeluBackwardSource<T>(dy.as<T>(), x.as<T>(), width),
        {.rows = dx.shape.rows(), .width = width, .sink = cast, .aligned = aligned, .y = dx.data});
  });
}

}  // namespace fp8train::ops::cuda
