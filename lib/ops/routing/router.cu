// The router: a thread has a row, whose arithmetic is that of the cpu.

#include "ops/dispatch/cuda_operations.h"
#include "ops/routing/router_math.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

using Counter = unsigned long long;

template <typename Rows>
__global__ void __launch_bounds__(kBlock) rows_kernel(Rows of_call, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (row < rows) {
    of_call.run(row);
  }
}

/// A block has a sequence.
__global__ void __launch_bounds__(kBlock)
    count_choices_kernel(const int32_t* chosen, int64_t choices, float* counts, int64_t experts) {
  float* const own = counts + blockIdx.x * experts;
  for (int64_t i = threadIdx.x; i < experts; i += kBlock) {
    own[i] = 0.0F;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < choices; i += kBlock) {
    atomicAdd(own + chosen[blockIdx.x * choices + i], 1.0F);
  }
}

/// One block.
__global__ void __launch_bounds__(kBlock)
    add_loads_kernel(const float* counts, int64_t sequences, int64_t experts, int64_t capacity,
                     int64_t* loads) {
  for (int64_t i = threadIdx.x; i < experts; i += kBlock) {
    int64_t load = 0;
    for (int64_t sequence = 0; sequence < sequences; ++sequence) {
      load += static_cast<int64_t>(counts[sequence * experts + i]);
    }
    loads[i] += load;
    if (load > capacity) {
      atomicAdd(reinterpret_cast<Counter*>(loads + experts), static_cast<Counter>(load - capacity));
    }
  }
}

__global__ void __launch_bounds__(kBlock)
    update_router_bias_kernel(LayerLoads loads, int64_t first, float rate, float* bias,
                              int64_t count, const int32_t* skip) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < count && (skip == nullptr || *skip == 0)) {
    bias[i] += rate * bias_direction(loads, first + i);
  }
}

unsigned blocks_of(int64_t threads) {
  return static_cast<unsigned>(ceil_div(threads, kBlock));
}

template <typename Rows>
void run_rows(const Stream& stream, const Rows& of_call, int64_t rows) {
  launch(stream, {blocks_of(rows), kBlock}, rows_kernel<Rows>, of_call, rows);
}

}  // namespace

void route(Stream stream, const Route& call) {
  run_rows(stream, RouteRows{call}, call.logits.shape.rows());
}

void count_choices(Stream stream, ConstView chosen, View counts) {
  const int64_t sequences = counts.shape.rows();
  launch(stream, {static_cast<unsigned>(sequences), kBlock}, count_choices_kernel,
         chosen.as<int32_t>(), chosen.count() / sequences, counts.as<float>(), counts.shape.back());
}

void add_loads(Stream stream, ConstView counts, int64_t capacity, View loads) {
  launch(stream, {1, kBlock}, add_loads_kernel, counts.as<float>(), counts.shape.rows(),
         counts.shape.back(), capacity, loads.as<int64_t>());
}

void route_backward(Stream stream, const RouteBackward& call) {
  run_rows(stream, RouteBackwardRows(call), call.logits.shape.rows());
}

void update_router_bias(Stream stream, const RouterBiasUpdate& call) {
  launch(stream, {blocks_of(call.bias.count()), kBlock}, update_router_bias_kernel,
         loads_of_layer(call), call.first, call.rate, call.bias.as<float>(), call.bias.count(),
         call.skip);
}

}  // namespace fp8train::ops::cuda
