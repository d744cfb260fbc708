// Gradient norms, and SGD. The arithmetic of ops/optimizer/optimizer_math.h and the order of sums
// of the cpu, bit for bit.

#include "ops/dispatch/cuda_operations.h"
#include "ops/optimizer/adamw_kernels.cuh"
#include "ops/optimizer/optimizer_math.h"

namespace fp8train::ops::cuda {
namespace {

// A part of the definition of sum_of_squares; a sum of sums has kBlock lanes.
constexpr int kLanes = 16;  // element i of a chunk belongs to sum i % 16

constexpr int kPack = 4;  // elements of one thread: 16 bytes of fp32
constexpr int kChunkThreads = kLanes / kPack;
constexpr int kGroupsAhead = 8;  // loads that a thread has in flight

/// lanes[j] += x[j]^2 for the kPack elements at `x`. A square of an fp32 number is exact in fp64,
/// so that a fused multiply-add has the bits of two operations.
template <typename X>
__device__ __forceinline__ void add_squares(double (&lanes)[kPack], const Pack<X, kPack>& x,
                                            [[maybe_unused]] DType read_as) {
  float values[kPack];
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    values[j] = load_as_float(&x.values[j]);
  }
  if constexpr (sizeof(X) == 4) {
    if (read_as == DType::bf16) {
      round_as_stored(values);
    }
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const double value = static_cast<double>(values[j]);
    lanes[j] = fma(value, value, lanes[j]);
  }
}

/// partial[chunk] by four threads, each with four of the sixteen sums.
template <typename X>
__global__ void __launch_bounds__(kBlock)
    sum_chunks_kernel(const X* x, double* partial, int64_t count, int64_t chunks, DType read_as,
                      bool aligned) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t chunk = thread / kChunkThreads;
  const int quarter = static_cast<int>(thread % kChunkThreads);
  double lanes[kPack] = {};
  int64_t i = chunk * kSquaresChunk + quarter * kPack;
  const int64_t chunk_end = (chunk + 1) * kSquaresChunk;
  const int64_t end = chunk_end < count ? chunk_end : count;
  if (aligned) {
    for (; i + (kGroupsAhead - 1) * kLanes + kPack <= end; i += kGroupsAhead * kLanes) {
      Pack<X, kPack> packs[kGroupsAhead];
#pragma unroll
      for (int group = 0; group < kGroupsAhead; ++group) {
        packs[group] = load_pack<kPack>(x + i + group * kLanes);
      }
#pragma unroll
      for (int group = 0; group < kGroupsAhead; ++group) {
        add_squares(lanes, packs[group], read_as);
      }
    }
  }
#pragma unroll 1
  for (; i < end; i += kLanes) {
    Pack<X, kPack> pack = {};  // a zero adds nothing
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (i + j < end) {
        pack.values[j] = x[i + j];
      }
    }
    add_squares(lanes, pack, read_as);
  }
  // The tree over sixteen sums: halves of 8 and 4 lie in other threads.
  for (int bits = kChunkThreads / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      lanes[j] += __shfl_xor_sync(kAllLanes, lanes[j], bits);
    }
  }
  if (quarter == 0 && chunk < chunks) {
    partial[chunk] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }
}

/// Each block sums `group` values that lie `stride` apart, in the order of the cpu: lane i % 256
/// adds value i in order, then the lanes are folded in halves. It is added to *accumulator, or
/// replaces the first value of the group where that is null.
__global__ void __launch_bounds__(kBlock)
    add_sums_kernel(double* sums, int64_t count, int64_t group, int64_t stride,
                    double* accumulator) {
  FP8TRAIN_SHARED_ARRAY(double, lanes, kBlock);
  const int64_t begin = blockIdx.x * group;
  const int64_t end = begin + group < count ? begin + group : count;
  const int lane = static_cast<int>(threadIdx.x);
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = begin + lane; i < end; i += kBlock) {
    sum += sums[i * stride];
  }
  lanes[lane] = sum;
#pragma unroll 1
  for (int width = kBlock / 2; width > 0; width /= 2) {
    __syncthreads();
    if (lane < width) {
      lanes[lane] += lanes[lane + width];
    }
  }
  if (lane == 0) {
    if (accumulator != nullptr) {
      *accumulator += lanes[0];
    } else {
      sums[begin * stride] = lanes[0];
    }
  }
}

/// Host: adds the sums of `chunks` chunks to *accumulator: those of a group first, then the groups.
/// A single group needs one kernel.
void add_chunks(const Stream& stream, double* sums, int64_t chunks, double* accumulator) {
  const int64_t groups = ceil_div(chunks, kSquaresGroup);
  if (groups <= 1) {
    launch(stream, {1, kBlock}, add_sums_kernel, sums, chunks, kSquaresGroup, int64_t{1},
           accumulator);
    return;
  }
  launch(stream, {static_cast<unsigned>(groups), kBlock}, add_sums_kernel, sums, chunks,
         kSquaresGroup, int64_t{1}, nullptr);
  launch(stream, {1, kBlock}, add_sums_kernel, sums, groups, groups, kSquaresGroup, accumulator);
}

__global__ void prepare_step_kernel(StepControl* control, float max_norm, LossScaling scaling) {
  update_step_control(*control, max_norm, scaling);
}

/// Updates elements i .. i + N - 1.
template <int N>
__device__ __forceinline__ void sgd_pack(const Sgd& call, const SgdFactors& factors, int64_t i) {
  const Pack<float, N> gradient = load_pack<N>(static_cast<const float*>(call.gradient.data) + i);
  float* weights = static_cast<float*>(call.weight.data) + i;
  Pack<float, N> weight = load_pack<N>(weights);
  if (call.momentum.data == nullptr) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      weight.values[j] =
          sgd_weight(factors, weight.values[j], gradient.values[j] * factors.gradient);
    }
  } else {
    float* directions = static_cast<float*>(call.momentum.data) + i;
    Pack<float, N> direction = load_pack<N>(directions);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      direction.values[j] = sgd_direction(factors, gradient.values[j], direction.values[j]);
      weight.values[j] = sgd_weight(factors, weight.values[j], direction.values[j]);
    }
    store_pack(directions, direction);
  }
  store_pack(weights, weight);
  if (call.copy.data != nullptr) {
    write_copy<N, (N > 1)>(static_cast<uint16_t*>(call.copy.data) + i,
                           call.copy.dtype == DType::f16, weight.values, N);
  }
}

/// A thread has N elements at a time. The factors take fp64 arithmetic: one thread of a block
/// computes them for all.
template <int N>
__global__ void sgd_kernel(Sgd call, const StepControl* control, int64_t count) {
  if (control->skip != 0) {
    return;
  }
  FP8TRAIN_SHARED_ARRAY(SgdFactors, shared, 1);
  if (threadIdx.x == 0) {
    *shared = sgd_factors(call, *control);
  }
  __syncthreads();
  const SgdFactors factors = *shared;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * N;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N; i < count; i += stride) {
    if (i + N <= count) {
      sgd_pack<N>(call, factors, i);
      continue;
    }
    for (int64_t j = i; j < count; ++j) {
      sgd_pack<1>(call, factors, j);
    }
  }
}

}  // namespace

void sum_of_squares(Stream stream, ConstView x, double* accumulator, View scratch, DType read_as) {
  const int64_t count = x.count();
  const int64_t chunks = squares_partial_sums(count);
  double* partial = scratch.as<double>();
  const auto blocks = static_cast<unsigned>(ceil_div(chunks * kChunkThreads, kBlock));
  with_float_type(x.dtype, [&]<typename X>(TypeTag<X>) {
    launch(stream, {blocks, kBlock}, sum_chunks_kernel<X>, x.as<X>(), partial, count, chunks,
           read_as, is_aligned(x.data, sizeof(X) * kPack));
  });
  add_chunks(stream, partial, chunks, accumulator);
}

void prepare_step(Stream stream, StepControl* control, float max_norm, const LossScaling& scaling) {
  launch(stream, {1, 1}, prepare_step_kernel, control, max_norm, scaling);
}

void sgd(Stream stream, const Sgd& call, const StepControl* control) {
  const int64_t count = call.weight.count();
  // The copy has two bytes an element.
  const bool aligned = is_aligned(call.weight.data) && is_aligned(call.gradient.data) &&
                       is_aligned(call.momentum.data) && is_aligned(call.copy.data, 2 * kPack);
  launch(stream, {blocks_for(stream, aligned ? ceil_div(count, kPack) : count), kBlock},
         aligned ? sgd_kernel<kPack> : sgd_kernel<1>, call, control, count);
}

}  // namespace fp8train::ops::cuda
