// Compiled once per CPU level. Sums within a row go over sixteen lanes in a fixed order, sums
// over rows over chunks of 64 rows: the same bits at every level and thread count.

#include "base/math.h"
#include "ops/cast/quantize_sink_cpu.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// Rows of one partial sum of a weight gradient: part of the gradient's definition.
constexpr int64_t kChunkRows = 64;

FP8TRAIN_HD float reciprocal_root(float mean_square, float eps) {
  return 1.0F / __builtin_sqrtf(mean_square + eps);
}

/// dx (+)= value, rounded once.
template <typename T>
FP8TRAIN_HD void put(T* dx, float value, bool accumulate) {
  store_from_float(dx, accumulate ? load_as_float(dx) + value : value);
}

/// target[c] (+)= the partial sums of column c over all chunks, in order.
FP8TRAIN_HD void add_partial_sums(const float* partial, int64_t chunks, int64_t n, float* target,
                                  bool overwrite) {
  constexpr int64_t kColumns = 256;
  const int64_t pieces = ceil_div(n, kColumns);
#pragma omp parallel for schedule(static) if (chunks * n >= kParallelElements)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t begin = piece * kColumns;
    const int64_t end = minimum(n, begin + kColumns);
    alignas(64) float sums[kColumns] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* row = partial + chunk * n;
      for (int64_t c = begin; c < end; ++c) {
        sums[c - begin] += row[c];
      }
    }
    for (int64_t c = begin; c < end; ++c) {
      target[c] = overwrite ? sums[c - begin] : target[c] + sums[c - begin];
    }
  }
}

/// The row that a norm is of: x, its copy, or the sum in front of the norm.
template <typename X>
FP8TRAIN_HD const X* normed_row(const NormForward& call, const X* x, int64_t row, int64_t n) {
  if (!call.original.empty()) {
    X* stored = call.original.as<X>() + row * n;
    for (int64_t i = 0; i < n; ++i) {
      stored[i] = x[i];
    }
    return stored;
  }
  if (call.residual.empty()) {
    return x;
  }
  const X* right = call.residual.delta.as<X>() + row * n;
  X* sum = call.residual.sum.as<X>() + row * n;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    store_from_float(sum + i, load_as_float(x + i) + load_as_float(right + i));
  }
  return sum;
}

/// values = 0 [n].
FP8TRAIN_HD void clear(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    values[i] = 0.0F;
  }
}

struct RowStatistics {
  float mean;  ///< 0 for RMSNorm: subtracting it changes no bit
  float rstd;
};

/// Returns the statistics of a row; `centered`: with a mean (LayerNorm).
template <typename X>
FP8TRAIN_HD RowStatistics statistics_of_row(const X* x, bool centered, float eps, int64_t n) {
  const float count = static_cast<float>(n);
  const float mean = centered ? lane_sum(n, [=](auto at) { return at(x); }) / count : 0.0F;
  const float square_sum = lane_sum(n, [=](auto at) {
    const auto value = at(x) - mean;
    return value * value;
  });
  return {mean, reciprocal_root(square_sum / count, eps)};
}

/// y = (x - mean) * rstd * weight (+ bias, unless that is null). y may be x.
template <typename X, typename Y>
FP8TRAIN_HD void scale_row(const X* x, const float* weight, const float* bias, RowStatistics row,
                           Y* y, int64_t count) {
  if (bias == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      store_from_float(y + i, (load_as_float(x + i) - row.mean) * row.rstd * weight[i]);
    }
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    store_from_float(y + i, (load_as_float(x + i) - row.mean) * row.rstd * weight[i] + bias[i]);
  }
}

/// A row of a backward pass, and the sums over rows that it adds to.
template <typename Dy, typename X, typename Dx>
struct BackwardRow {
  const Dy* dy;
  const X* x;
  RowStatistics statistics;
  Dx* dx;  ///< may be dy
  float* weight_sum;
  float* bias_sum;  ///< null: RMSNorm
};

/// dx (+)= rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * weight, xhat = (x - mean) *
/// rstd, and without mean(g) for RMSNorm; weight_sum += dy * xhat, bias_sum += dy.
template <typename Dy, typename X, typename Dx>
FP8TRAIN_HD void row_backward(const BackwardRow<Dy, X, Dx>& call, const float* weight,
                              bool accumulate, int64_t n) {
  const Dy* const dy = call.dy;
  const X* const x = call.x;
  const RowStatistics row = call.statistics;
  float* const bias_sum = call.bias_sum;
  const float count = static_cast<float>(n);
  const float gradient_mean =
      bias_sum == nullptr ? 0.0F
                          : lane_sum(n, [=](auto at) { return at(dy) * at(weight); }) / count;
  const float projection =
      lane_sum(n, [=](auto at) { return at(dy) * at(weight) * ((at(x) - row.mean) * row.rstd); });
  const float projection_mean = projection / count;
  if (bias_sum != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      bias_sum[i] += load_as_float(dy + i);
    }
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = load_as_float(dy + i);
    const float xhat = (load_as_float(x + i) - row.mean) * row.rstd;
    call.weight_sum[i] += gradient * xhat;
    put(call.dx + i, row.rstd * (gradient * weight[i] - gradient_mean - xhat * projection_mean),
        accumulate);
  }
}

}  // namespace

void norm_forward(Stream /*stream*/, const NormForward& call) {
  const int64_t n = call.x.shape.back();
  const int64_t rows = call.x.shape.rows();
  const NormRows layout = call.rows.or_packed(n);
  const bool centered = !call.mean.empty();
  const float* w = call.weight.as<float>();
  const float* b = call.bias.as<float>();
  float* mean_out = call.mean.as<float>();
  float* rstd_out = call.rstd.as<float>();
  with_float_type(call.x.dtype, [&](auto x_tag) {
    with_float_type(call.y.dtype, [&]<typename Y>(TypeTag<Y>) {
      const auto* data = call.x.as<typename decltype(x_tag)::Type>();
      for_each_row<Y>(call.cast, rows, n, [&](int64_t row, CastCounts& counts) {
        const auto* from = normed_row(call, data + layout.at(row, n), row, n);
        const RowStatistics statistics = statistics_of_row(from, centered, call.eps, n);
        if (centered) {
          mean_out[row] = statistics.mean;
        }
        rstd_out[row] = statistics.rstd;
        Y* const y = call.y.empty() ? nullptr : call.y.as<Y>() + layout.at(row, n);
        produce_row(call.cast, y, row, n, counts, [=](int64_t begin, int64_t length, Y* to) {
          scale_row(from + begin, w + begin, b == nullptr ? nullptr : b + begin, statistics, to,
                    length);
        });
      });
    });
  });
}

void norm_backward(Stream /*stream*/, const NormBackward& call) {
  const int64_t n = call.x.shape.back();
  const int64_t rows = call.x.shape.rows();
  const NormRows layout = call.rows.or_packed(n);
  const int64_t chunk_rows = kChunkRows * layout.heads;
  const int64_t chunks = ceil_div(rows, chunk_rows);
  const float* w = call.weight.as<float>();
  const float* mean_in = call.mean.as<float>();
  const float* rstd_in = call.rstd.as<float>();
  float* weight_partial = call.scratch.as<float>();
  float* bias_partial = mean_in == nullptr ? nullptr : weight_partial + chunks * n;
  const auto run = [&]<typename Dy, typename X, typename Dx>(const Dy* dy, const X* x, Dx* dx) {
#pragma omp parallel for schedule(static) if (rows * n >= kParallelElements)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      float* weight_sums = weight_partial + chunk * n;
      float* bias_sums = bias_partial == nullptr ? nullptr : bias_partial + chunk * n;
      clear(weight_sums, n);
      clear(bias_sums, bias_sums == nullptr ? 0 : n);
      const int64_t end = minimum(rows, (chunk + 1) * chunk_rows);
      for (int64_t row = chunk * chunk_rows; row < end; ++row) {
        const int64_t at = layout.at(row, n);
        const BackwardRow<Dy, X, Dx> arguments = {
            .dy = dy + at,
            .x = x + row * n,
            .statistics = {mean_in == nullptr ? 0.0F : mean_in[row], rstd_in[row]},
            .dx = dx + at,
            .weight_sum = weight_sums,
            .bias_sum = bias_sums};
        row_backward(arguments, w, call.accumulate, n);
      }
    }
  };
  with_float_type(call.dy.dtype, [&]<typename Dy>(TypeTag<Dy>) {
    with_float_type(call.x.dtype, [&]<typename X>(TypeTag<X>) {
      // The branches differ in dx's type. NOLINTNEXTLINE(bugprone-branch-clone)
      if (call.dx.dtype == call.x.dtype) {
        run(call.dy.as<Dy>(), call.x.as<X>(), call.dx.as<X>());
      } else {
        run(call.dy.as<Dy>(), call.x.as<X>(), call.dx.as<Dy>());
      }
    });
  });
  add_partial_sums(weight_partial, chunks, n, call.weight_grad.as<float>(),
                   call.overwrite_weight_grad);
  if (!call.bias_grad.empty()) {
    add_partial_sums(bias_partial, chunks, n, call.bias_grad.as<float>(),
                     call.overwrite_weight_grad);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
