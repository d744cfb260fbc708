// Soft-max cross-entropy, one block a row: one pass finds the largest logit and the sum of
// exponentials, a second one writes the gradient. The maximum is the cpu's; exponentials are those
// of fast_math.cuh, and the sum has another order (each thread its own elements in fp32, threads in
// fp64). An exponential below 2^-126 is 0. Two exponentials a logit cost less than storing one: a
// row of 128256 does not fit into shared memory.

#include <type_traits>

#include "numeric/math.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/loss/cross_entropy_math.h"
#include "ops/support/convert.cuh"
#include "ops/support/fast_math.cuh"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPack = 8;        // elements of one thread: 16 bytes of bf16
constexpr int kPacksAhead = 2;  // that a thread has in flight
constexpr int kThreads = 512;

/// The largest of the numbers seen and the sum of e^(x - largest), rescaled when a larger one
/// comes.
struct OnlineSum {
  float largest = -float_of(0x7F800000U);
  float sum = 0.0F;

  template <int N>
  __device__ __forceinline__ void add(const float* x) {
    float above = largest;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      above = fmaxf(above, x[j]);  // passes over NaN, as the cpu does
    }
    if (above > largest) {
      sum *= exp_fast(largest - above);
      largest = above;
    }
    const float base = base_of(largest);
    float block = 0.0F;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      block += exp_fast(x[j] - base);
    }
    sum += block;
  }
};

/// The arguments of the kernels. A block has a row.
struct RowCall {
  CrossEntropy of;
  int64_t columns;
  int64_t used;  ///< columns here that the vocabulary has

  template <typename X>
  __device__ __forceinline__ X* logits() const {
    return static_cast<X*>(of.logits.data) + blockIdx.x * columns;
  }
  __device__ __forceinline__ int32_t target() const {
    return static_cast<const int32_t*>(of.targets.data)[blockIdx.x];
  }
  __device__ __forceinline__ void set_losses(float loss, float z_loss) const {
    static_cast<float*>(of.losses.data)[blockIdx.x] = loss;
    if (of.z_losses.data != nullptr) {
      static_cast<float*>(of.z_losses.data)[blockIdx.x] = z_loss;
    }
  }
};

/// N elements, aligned to N of them.
template <int N, typename X>
__device__ __forceinline__ void load_floats(const X* from, float (&values)[N]) {
  const Pack<X, N> pack = load_pack<N>(from);
  if constexpr (N > 1 && std::is_same_v<X, f16>) {
    const auto words = __builtin_bit_cast(Pack<uint32_t, N / 2>, pack);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) {
      widen_f16_pair(words.values[j], values[2 * j], values[2 * j + 1]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] = load_as_float(&pack.values[j]);
    }
  }
}

/// The sum over this thread's elements of a row.
template <int N, typename X>
__device__ __forceinline__ OnlineSum sum_part(const X* x, int64_t vocabulary) {
  constexpr int64_t kStride = int64_t{kThreads} * N;
  OnlineSum online;
  int64_t c = int64_t{threadIdx.x} * N;
  for (; c + (kPacksAhead - 1) * kStride + N <= vocabulary; c += kPacksAhead * kStride) {
    float values[kPacksAhead][N];
#pragma unroll
    for (int k = 0; k < kPacksAhead; ++k) {
      load_floats<N>(x + c + k * kStride, values[k]);
    }
#pragma unroll
    for (int k = 0; k < kPacksAhead; ++k) {
      online.template add<N>(values[k]);
    }
  }
  for (; c + N <= vocabulary; c += kStride) {
    float values[N];
    load_floats<N>(x + c, values);
    online.template add<N>(values);
  }
  if (c < vocabulary) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (c + j < vocabulary) {
        const float value = load_as_float(x + c + j);
        online.template add<1>(&value);
      }
    }
  }
  return online;
}

/// The sum over the elements of a row, by a block. The arrays are shared memory.
template <int N, typename X>
__device__ __forceinline__ LogitSum sum_of_logits(const X* x, int64_t count,
                                                  float* largest_of_warps, double* sum_of_warps) {
  const OnlineSum part = sum_part<N>(x, count);
  const float largest = block_reduce<kThreads>(part.largest, Largest{}, largest_of_warps);
  const double rescaled = static_cast<double>(part.sum) *
                          static_cast<double>(exp_fast(part.largest - base_of(largest)));
  return {largest, static_cast<float>(block_reduce<kThreads>(rescaled, Sum{}, sum_of_warps)), 0.0F};
}

/// The gradient of a row: element c is e^(x - maximum) * factor, that of the target is `at_target`.
struct RowGradient {
  float maximum, factor, at_target;
};

/// The gradients of N logits, as if none were the target.
template <int N, typename X>
__device__ __forceinline__ Pack<X, N> gradients_of(float (&values)[N], const RowGradient& row) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    values[j] = exp_fast(values[j] - row.maximum) * row.factor;
  }
  Pack<X, N> pack;
  if constexpr (N > 1 && sizeof(X) == 2) {
    Pack<uint32_t, N / 2> words;
#pragma unroll
    for (int j = 0; j < N / 2; ++j) {
      words.values[j] = narrow_pair<X>(values[2 * j], values[2 * j + 1]);
    }
    pack = __builtin_bit_cast(decltype(pack), words);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_from_float(&pack.values[j], values[j]);
    }
  }
  return pack;
}

/// The row's gradient in place; zero in the padding. `target` may be out of range.
template <int N, typename X>
__device__ __forceinline__ void write_gradient(X* x, int64_t columns, int64_t vocabulary,
                                               int64_t target, const RowGradient& row) {
  constexpr int64_t kStride = int64_t{kThreads} * N;
  int64_t c = int64_t{threadIdx.x} * N;
  for (; c + N <= vocabulary; c += kStride) {
    float values[N];
    load_floats<N>(x + c, values);
    store_pack(x + c, gradients_of<N, X>(values, row));
  }
  for (; c < columns; c += kStride) {
    Pack<X, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float value[1] = {c + j < vocabulary ? load_as_float(x + c + j) : 0.0F};
      const X gradient = gradients_of<1, X>(value, row).values[0];
      pack.values[j] = c + j < vocabulary ? gradient : X{};
    }
    store_pack(x + c, pack);
  }
  // By the thread that wrote the target's pack.
  if (target >= 0 && target < vocabulary && target / N % kThreads == threadIdx.x) {
    store_from_float(x + target, row.at_target);
  }
}

/// The gradient of a row whose target is ignored.
template <int N, typename X>
__device__ __forceinline__ void write_zeros(X* x, int64_t columns) {
  Pack<X, N> zeros;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    store_from_float(&zeros.values[j], 0.0F);
  }
  for (int64_t c = int64_t{threadIdx.x} * N; c < columns; c += int64_t{kThreads} * N) {
    store_pack(x + c, zeros);
  }
}

/// The loss and the gradient of a row whose target is ignored or impossible. Returns whether it is.
template <int N, typename X>
__device__ __forceinline__ bool has_no_target(const RowCall& call) {
  const int32_t target = call.target();
  if (target >= 0 && target < call.of.vocabulary) {
    return false;
  }
  if (target < 0 && call.of.write_gradient) {
    write_zeros<N>(call.logits<X>(), call.columns);
  }
  if (threadIdx.x == 0) {
    call.set_losses(target < 0 ? 0.0F : float_of(0x7FC00000U), 0.0F);
  }
  return true;
}

/// The loss and the gradient of a row whose statistics are known.
template <int N, typename X>
__device__ __forceinline__ void write_row(const RowCall& call, const LogitSum& row) {
  const CrossEntropy& of = call.of;
  const float target_shifted = row.target - row.largest;
  const float log_sum = log_f32(row.sum);
  const float log_sum_exp = row.largest + log_sum;
  if (threadIdx.x == 0) {
    call.set_losses(log_sum - target_shifted,
                    of.z_loss == 0.0F ? 0.0F : of.z_loss * (log_sum_exp * log_sum_exp));
  }
  if (!of.write_gradient) {
    return;
  }
  const float scale = (of.gradient_scale == nullptr ? 1.0F : *of.gradient_scale) *
                      (of.target_share == nullptr ? of.gradient_factor : *of.target_share);
  const float z_slope = 2.0F * of.z_loss * log_sum_exp;
  const float inverse = 1.0F / row.sum;
  const float p = exp_fast(target_shifted) * inverse;
  write_gradient<N>(
      call.logits<X>(), call.columns, call.used, call.target() - of.first_column,
      {row.largest, inverse * (1.0F + z_slope) * scale, ((p - 1.0F) + p * z_slope) * scale});
}

/// A block has a row, a thread N elements of it at a time.
template <int N, typename X>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(RowCall call) {
  FP8TRAIN_SHARED_ARRAY(float, largest_of_warps, kThreads / kWarp);
  FP8TRAIN_SHARED_ARRAY(double, sum_of_warps, kThreads / kWarp);
  if (has_no_target<N, X>(call)) {
    return;
  }
  const X* const x = call.logits<X>();
  const float at_target = load_as_float(x + call.target());
  LogitSum row = sum_of_logits<N>(x, call.of.vocabulary, largest_of_warps, sum_of_warps);
  row.target = at_target;
  write_row<N, X>(call, of_whole_row(row));
}

/// The same with the statistics of all parts.
template <int N, typename X>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_of_parts_kernel(RowCall call, PartsOfRows parts) {
  if (!has_no_target<N, X>(call)) {
    write_row<N, X>(call, parts.combined(blockIdx.x));
  }
}

/// A block has one part of a row.
template <int N, typename X>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(VocabularyStatistics call, int64_t columns, int64_t width) {
  FP8TRAIN_SHARED_ARRAY(float, largest_of_warps, kThreads / kWarp);
  FP8TRAIN_SHARED_ARRAY(double, sum_of_warps, kThreads / kWarp);
  const int64_t begin = blockIdx.y * width;
  const X* const x = static_cast<const X*>(call.logits.data) + blockIdx.x * columns + begin;
  const int32_t target = static_cast<const int32_t*>(call.targets.data)[blockIdx.x];
  LogitSum part = no_logits();
  if (target >= 0 && target < call.vocabulary) {
    const int64_t first = call.first_column + begin;
    const int64_t used = used_columns(call.vocabulary, first, width);
    part = sum_of_logits<N>(x, used, largest_of_warps, sum_of_warps);
    if (target >= first && target - first < used) {
      part.target = load_as_float(x + (target - first));
    }
  }
  if (threadIdx.x == 0) {
    auto* const statistics = static_cast<LogitSum*>(call.statistics.data);
    statistics[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = part;
  }
}

/// One block: all its threads fetch, one adds in order.
__global__ void accumulate_loss_kernel(const float* losses, const int32_t* targets, int64_t rows,
                                       double* accumulator, int64_t* count) {
  FP8TRAIN_SHARED_ARRAY(float, tile, kThreads);
  FP8TRAIN_SHARED_ARRAY(int64_t, counts, kThreads / kWarp);
  int64_t counted = 0;
  double sum = 0.0;
  for (int64_t begin = 0; begin < rows; begin += kThreads) {
    const int64_t row = begin + threadIdx.x;
    if (row < rows) {
      tile[threadIdx.x] = losses[row];
      counted += targets[row] >= 0 ? 1 : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int length = static_cast<int>(rows - begin < kThreads ? rows - begin : kThreads);
#pragma unroll 8
      for (int i = 0; i < length; ++i) {
        sum += static_cast<double>(tile[i]);
      }
    }
    __syncthreads();
  }
  counted = block_reduce<kThreads>(counted, Sum{}, counts);
  if (threadIdx.x == 0) {
    *accumulator += sum;
    if (count != nullptr) {
      *count += counted;
    }
  }
}

}  // namespace

void vocabulary_statistics(Stream stream, const VocabularyStatistics& call) {
  const int64_t width = call.logits.count() * kStatistics / call.statistics.count();
  const dim3 grid(static_cast<unsigned>(call.logits.shape.rows()),
                  static_cast<unsigned>(call.logits.shape.back() / width));
  with_float_type(call.logits.dtype, [&]<typename X>(TypeTag<X>) {
    const bool packed = width % kPack == 0 && is_aligned(call.logits.data, sizeof(X) * kPack);
    launch(stream, {grid, kThreads}, packed ? statistics_kernel<kPack, X> : statistics_kernel<1, X>,
           call, call.logits.shape.back(), width);
  });
}

void cross_entropy(Stream stream, const CrossEntropy& call) {
  const int64_t columns = call.logits.shape.back();
  const auto rows = static_cast<unsigned>(call.logits.shape.rows());
  const PartsOfRows parts = parts_of_rows(call.statistics, rows);
  const RowCall row = {call, columns, used_columns(call.vocabulary, call.first_column, columns)};
  with_float_type(call.logits.dtype, [&]<typename X>(TypeTag<X>) {
    const bool packed = columns % kPack == 0 && is_aligned(call.logits.data, sizeof(X) * kPack);
    if (parts.count > 0) {
      launch(stream, {rows, kThreads},
             packed ? cross_entropy_of_parts_kernel<kPack, X> : cross_entropy_of_parts_kernel<1, X>,
             row, parts);
    } else {
      launch(stream, {rows, kThreads},
             packed ? cross_entropy_kernel<kPack, X> : cross_entropy_kernel<1, X>, row);
    }
  });
}

void accumulate_loss(Stream stream, ConstView losses, ConstView targets, double* accumulator,
                     int64_t* count) {
  launch(stream, {1, kThreads}, accumulate_loss_kernel, losses.as<float>(), targets.as<int32_t>(),
         losses.count(), accumulator, count);
}

}  // namespace fp8train::ops::cuda
