// RMSNorm, LayerNorm and the RMSNorm of heads; the kernels are in norm_kernels.h.

#include "ops/cuda/cuda_table.h"
#include "ops/cuda/norm_cast.h"
#include "ops/cuda/norm_kernels.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int64_t kForwardBytes = int64_t{32} << 10;   // of staged rows: several blocks fit
constexpr int64_t kBackwardBytes = int64_t{64} << 10;  // on one multiprocessor
constexpr int64_t kMostBytes = int64_t{96} << 10;      // every GPU has 99 KiB

/// Rows of a batch that fill `bytes` of shared memory, 1 to kNormBatch.
int64_t batch_of(int64_t row_bytes, int64_t bytes) {
  const int64_t fitting = bytes / row_bytes;
  return fitting < 1 ? 1 : (fitting < kNormBatch ? fitting : kNormBatch);
}

/// Whether rows of packs of 16 bytes lie at `rows`.
bool has_packs(const NormRows& rows) {
  return rows.stride % kNormPack == 0;
}

template <bool kLayer, typename X, typename Y>
void run_forward(const Stream& stream, NormForward<X, Y> call) {
  const int64_t row_bytes = call.n * static_cast<int64_t>(sizeof(X));
  const bool staged = call.n % kNormPack == 0 && row_bytes <= kMostBytes && is_aligned(call.x) &&
                      is_aligned(call.y) && is_aligned(call.weight) && is_aligned(call.bias) &&
                      is_aligned(call.original) && has_packs(call.x_rows) && has_packs(call.y_rows);
  // Few rows: rather smaller batches than idle multiprocessors. The bits do not depend on it.
  const int64_t spread = ceil_div(call.rows, int64_t{4} * cuda_context(stream).multiprocessors);
  const int64_t fitting = batch_of(row_bytes, kForwardBytes);
  call.batch = static_cast<int>(spread < fitting ? spread : fitting);
  const auto blocks = static_cast<unsigned>(call.rows == 0 ? 0 : ceil_div(call.rows, call.batch));
  if (staged) {
    launch(stream, {blocks, kBlock, static_cast<size_t>(call.batch * row_bytes)},
           norm_forward_kernel<true, kLayer, X, Y>, call);
  } else {
    launch(stream, {blocks, kBlock}, norm_forward_kernel<false, kLayer, X, Y>, call);
  }
}

/// partial: [chunks, n]; target[c] += the sum of column c, in order.
__global__ void add_norm_partial_kernel(const float* partial, int64_t chunks, int n,
                                        float* target) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= n) {
    return;
  }
  float sum = 0.0F;
#pragma unroll 16
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    sum += partial[chunk * n + c];
  }
  target[c] += sum;
}

void add_partial_sums(const Stream& stream, const float* partial, int64_t chunks, int n,
                      float* target) {
  constexpr int kThreads = 64;  // small blocks: a row has few columns for a whole GPU
  launch(stream, {static_cast<unsigned>(ceil_div(n, kThreads)), kThreads}, add_norm_partial_kernel,
         partial, chunks, n, target);
}

template <bool kLayer, typename Dx, typename Dy, typename X>
void run_backward(const Stream& stream, NormBackward<Dy, X> call, int64_t chunks) {
  const int64_t row_bytes = call.n * static_cast<int64_t>(sizeof(X) + sizeof(Dy));
  const bool staged = call.n % kNormPack == 0 && row_bytes <= kMostBytes && is_aligned(call.x) &&
                      is_aligned(call.dy) && is_aligned(call.dx) && is_aligned(call.weight) &&
                      has_packs(call.dy_rows) && has_packs(call.dx_rows);
  const int64_t fitting = batch_of(row_bytes, kBackwardBytes);
  call.batch = static_cast<int>(call.chunk_rows < fitting ? call.chunk_rows : fitting);
  const auto blocks = static_cast<unsigned>(chunks);
  if (staged) {
    launch(stream, {blocks, kBlock, static_cast<size_t>(call.batch * row_bytes)},
           norm_backward_kernel<true, kLayer, Dy, X, Dx>, call);
  } else {
    launch(stream, {blocks, kBlock}, norm_backward_kernel<false, kLayer, Dy, X, Dx>, call);
  }
}

template <bool kLayer>
void norm_forward(const Stream& stream, const ConstView& x, const ConstView& weight,
                  const ConstView& bias, float eps, const View& y, float* mean, float* rstd,
                  const QuantizeSink& cast) {
  const int64_t n = x.shape.back();
  with_float_type(x.dtype, [&](auto x_tag) {
    with_float_type(y.dtype, [&](auto y_tag) {
      using X = typename decltype(x_tag)::Type;
      using Y = typename decltype(y_tag)::Type;
      const NormForward<X, Y> call = {.x = x.as<X>(),
                                      .x_rows = {n, 1},
                                      .weight = weight.as<float>(),
                                      .bias = bias.as<float>(),
                                      .eps = eps,
                                      .y = cast.out.empty() ? y.as<Y>() : nullptr,
                                      .y_rows = {n, 1},
                                      .original = nullptr,
                                      .mean = mean,
                                      .rstd = rstd,
                                      .amax = cast.out.empty() ? cast.amax : nullptr,
                                      .rows = x.shape.rows(),
                                      .n = static_cast<int>(n),
                                      .batch = 0};
      run_forward<kLayer>(stream, call);
      if (!cast.out.empty()) {
        const NormSource<X, Y> source = {call.x, call.weight, call.bias, mean, rstd, n};
        cast_tiles(stream, source, call.rows, n, y.data, cast,
                   is_aligned(call.x) && is_aligned(call.weight) && is_aligned(call.bias));
      }
    });
  });
}

void rms_norm_forward(Stream stream, ConstView x, ConstView weight, float eps, View y, View rstd,
                      const QuantizeSink& cast) {
  norm_forward<false>(stream, x, weight, {}, eps, y, nullptr, rstd.as<float>(), cast);
}

void layer_norm_forward(Stream stream, ConstView x, ConstView weight, ConstView bias, float eps,
                        View y, View mean, View rstd, const QuantizeSink& cast) {
  norm_forward<true>(stream, x, weight, bias, eps, y, mean.as<float>(), rstd.as<float>(), cast);
}

template <bool kLayer>
void norm_backward(const Stream& stream, const ConstView& dy, const ConstView& x,
                   const ConstView& weight, const float* mean, const float* rstd, const View& dx,
                   bool accumulate, const View& weight_grad, const View& bias_grad,
                   const View& scratch) {
  const int64_t n = x.shape.back();
  const int64_t chunks = ceil_div(x.shape.rows(), kNormChunk);
  float* partial = scratch.as<float>();
  with_float_type(dy.dtype, [&](auto dy_tag) {
    with_float_type(x.dtype, [&](auto x_tag) {
      using Dy = typename decltype(dy_tag)::Type;
      using X = typename decltype(x_tag)::Type;
      const NormBackward<Dy, X> call = {.dy = dy.as<Dy>(),
                                        .dy_rows = {n, 1},
                                        .x = x.as<X>(),
                                        .weight = weight.as<float>(),
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dx = dx.data,
                                        .dx_rows = {n, 1},
                                        .accumulate = accumulate,
                                        .weight_partial = partial,
                                        .bias_partial = kLayer ? partial + chunks * n : nullptr,
                                        .rows = x.shape.rows(),
                                        .chunk_rows = kNormChunk,
                                        .n = static_cast<int>(n),
                                        .batch = 0};
      run_backward<kLayer, X>(stream, call, chunks);
    });
  });
  add_partial_sums(stream, partial, chunks, static_cast<int>(n), weight_grad.as<float>());
  if (kLayer && !bias_grad.empty()) {
    add_partial_sums(stream, partial + chunks * n, chunks, static_cast<int>(n),
                     bias_grad.as<float>());
  }
}

void rms_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView rstd,
                       View dx, bool accumulate, View weight_grad, View scratch) {
  norm_backward<false>(stream, dy, x, weight, nullptr, rstd.as<float>(), dx, accumulate,
                       weight_grad, {}, scratch);
}

void layer_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView mean,
                         ConstView rstd, View dx, bool accumulate, View weight_grad, View bias_grad,
                         View scratch) {
  norm_backward<true>(stream, dy, x, weight, mean.as<float>(), rstd.as<float>(), dx, accumulate,
                      weight_grad, bias_grad, scratch);
}

void head_rms_norm_forward(Stream stream, HeadsView x, int64_t rows, int64_t heads,
                           int64_t head_dim, ConstView weight, float eps, View original,
                           View rstd) {
  const NormRows layout = {x.row_stride, static_cast<int>(heads)};
  with_float_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    T* data = static_cast<T*>(x.data);
    const NormForward<T, T> call = {.x = data,
                                    .x_rows = layout,
                                    .weight = weight.as<float>(),
                                    .bias = nullptr,
                                    .eps = eps,
                                    .y = data,
                                    .y_rows = layout,
                                    .original = original.as<T>(),
                                    .mean = nullptr,
                                    .rstd = rstd.as<float>(),
                                    .amax = nullptr,
                                    .rows = rows * heads,
                                    .n = static_cast<int>(head_dim),
                                    .batch = 0};
    run_forward<false>(stream, call);
  });
}

void head_rms_norm_backward(Stream stream, HeadsView dx, int64_t rows, int64_t heads,
                            int64_t head_dim, ConstView original, ConstView weight, ConstView rstd,
                            View weight_grad, View scratch) {
  const int64_t chunks = ceil_div(rows, kNormChunk);
  const NormRows layout = {dx.row_stride, static_cast<int>(heads)};
  with_float_type(dx.dtype, [&](auto dx_tag) {
    with_float_type(original.dtype, [&](auto x_tag) {
      using Dx = typename decltype(dx_tag)::Type;
      using X = typename decltype(x_tag)::Type;
      const NormBackward<Dx, X> call = {.dy = static_cast<const Dx*>(dx.data),
                                        .dy_rows = layout,
                                        .x = original.as<X>(),
                                        .weight = weight.as<float>(),
                                        .mean = nullptr,
                                        .rstd = rstd.as<float>(),
                                        .dx = dx.data,
                                        .dx_rows = layout,
                                        .accumulate = false,
                                        .weight_partial = scratch.as<float>(),
                                        .bias_partial = nullptr,
                                        .rows = rows * heads,
                                        .chunk_rows = kNormChunk * heads,
                                        .n = static_cast<int>(head_dim),
                                        .batch = 0};
      run_backward<false, Dx>(stream, call, chunks);
    });
  });
  add_partial_sums(stream, scratch.as<float>(), chunks, static_cast<int>(head_dim),
                   weight_grad.as<float>());
}

}  // namespace

void fill_norm(OpTable& table) {
  table.rms_norm_forward = rms_norm_forward;
  table.rms_norm_backward = rms_norm_backward;
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_backward = layer_norm_backward;
  table.head_rms_norm_forward = head_rms_norm_forward;
  table.head_rms_norm_backward = head_rms_norm_backward;
}

}  // namespace fp8train::ops::cuda
