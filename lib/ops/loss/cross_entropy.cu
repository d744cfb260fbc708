// Soft-max cross-entropy, one block a row: one pass finds the largest logit and the sum of
// exponentials, a second one writes the gradient. The maximum is the cpu's; exponentials are those
// of fast_math.cuh, and the sum has another order (each thread its own elements in fp32, threads in
// fp64). An exponential below 2^-126 is 0. Two exponentials a logit cost less than storing one: a
// row of 128256 does not fit into shared memory.

#include <type_traits>

#include "numeric/math.h"
#include "ops/dispatch/cuda_operations.h"
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
    // While all is -infinity (or NaN), -infinity - -infinity must not make a NaN of its own.
    const float base = largest == -float_of(0x7F800000U) ? 0.0F : largest;
    float block = 0.0F;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      block += exp_fast(x[j] - base);
    }
    sum += block;
  }
};

/// The arguments of the kernel: CrossEntropy with a known type.
template <typename X>
struct RowCall {
  X* logits;
  const int32_t* targets;
  float* losses;
  float* z_losses;  ///< may be null
  int64_t columns;
  int64_t vocabulary;
  bool write_gradient;
  const float* gradient_scale;  ///< may be null
  float gradient_factor;
  const float* target_share;  ///< may be null
  float z_loss;
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

/// The row's gradient in place; zero in the padding.
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
  if (target / N % kThreads == threadIdx.x) {  // the thread that wrote the target's pack
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

/// A block has a row, a thread N elements of it at a time.
template <int N, typename X>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(RowCall<X> call) {
  FP8TRAIN_SHARED_ARRAY(float, largest_of_warps, kThreads / kWarp);
  FP8TRAIN_SHARED_ARRAY(double, sum_of_warps, kThreads / kWarp);
  X* const x = call.logits + blockIdx.x * call.columns;
  float* const loss = call.losses + blockIdx.x;
  const int32_t target = call.targets[blockIdx.x];
  if (target < 0 || target >= call.vocabulary) {
    if (target < 0 && call.write_gradient) {
      write_zeros<N>(x, call.columns);
    }
    if (threadIdx.x == 0) {
      *loss = target < 0 ? 0.0F : float_of(0x7FC00000U);
      if (call.z_losses != nullptr) {
        call.z_losses[blockIdx.x] = 0.0F;
      }
    }
    return;
  }
  const float target_logit = load_as_float(x + target);
  const OnlineSum part = sum_part<N>(x, call.vocabulary);
  const float maximum = block_reduce<kThreads>(part.largest, Largest{}, largest_of_warps);
  const double rescaled =
      static_cast<double>(part.sum) * static_cast<double>(exp_fast(part.largest - maximum));
  const float sum = static_cast<float>(block_reduce<kThreads>(rescaled, Sum{}, sum_of_warps));
  const float target_shifted = target_logit - maximum;
  const float log_sum = log_f32(sum);
  const float log_sum_exp = maximum + log_sum;
  if (threadIdx.x == 0) {
    *loss = log_sum - target_shifted;
    if (call.z_losses != nullptr) {
      call.z_losses[blockIdx.x] =
          call.z_loss == 0.0F ? 0.0F : call.z_loss * (log_sum_exp * log_sum_exp);
    }
  }
  if (!call.write_gradient) {
    return;
  }
  const float scale = (call.gradient_scale == nullptr ? 1.0F : *call.gradient_scale) *
                      (call.target_share == nullptr ? call.gradient_factor : *call.target_share);
  const float z_slope = 2.0F * call.z_loss * log_sum_exp;
  const float inverse = 1.0F / sum;
  const float p = exp_fast(target_shifted) * inverse;
  write_gradient<N>(
      x, call.columns, call.vocabulary, target,
      {maximum, inverse * (1.0F + z_slope) * scale, ((p - 1.0F) + p * z_slope) * scale});
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

void cross_entropy(Stream stream, const CrossEntropy& call) {
  const int64_t columns = call.logits.shape.back();
  const auto rows = static_cast<unsigned>(call.logits.shape.rows());
  with_float_type(call.logits.dtype, [&](auto tag) {
    using X = typename decltype(tag)::Type;
    const RowCall<X> row = {.logits = call.logits.as<X>(),
                            .targets = call.targets.as<int32_t>(),
                            .losses = call.losses.as<float>(),
                            .z_losses = call.z_losses.as<float>(),
                            .columns = columns,
                            .vocabulary = call.vocabulary,
                            .write_gradient = call.write_gradient,
                            .gradient_scale = call.gradient_scale,
                            .gradient_factor = call.gradient_factor,
                            .target_share = call.target_share,
                            .z_loss = call.z_loss};
    if (columns % kPack == 0 && is_aligned(row.logits, sizeof(X) * kPack)) {
      launch(stream, {rows, kThreads}, cross_entropy_kernel<kPack, X>, row);
    } else {
      launch(stream, {rows, kThreads}, cross_entropy_kernel<1, X>, row);
    }
  });
}

void accumulate_loss(Stream stream, ConstView losses, ConstView targets, double* accumulator,
                     int64_t* count) {
  launch(stream, {1, kThreads}, accumulate_loss_kernel, losses.as<float>(), targets.as<int32_t>(),
         losses.count(), accumulator, count);
}

}  // namespace fp8train::ops::cuda
