// Rows of tokens to experts and back, with the bits of the cpu: gathers, without atomics.

#include "ops/dispatch/cuda_operations.h"
#include "ops/routing/token_rows.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPack = 8;       // elements of one thread
constexpr int kSumLanes = 16;  // of a dot product, as on the cpu

/// A block has an expert. It looks at kBlock choices at a time, and numbers its own in order.
__global__ void __launch_bounds__(kBlock)
    assign_slots_kernel(const int32_t* chosen, int64_t choices, int64_t capacity,
                        const int32_t* begins, int32_t* slots, int32_t* sources) {
  FP8TRAIN_SHARED_ARRAY(int, of_warps, kBlock / kWarp);
  const int64_t expert = blockIdx.x;
  const int64_t first = begins == nullptr ? expert * capacity : begins[expert];
  capacity = begins == nullptr ? capacity : begins[expert + 1] - first;
  int32_t* const own_sources = sources + first;
  int64_t used = 0;
  for (int64_t begin = 0; begin < choices; begin += kBlock) {
    const int64_t choice = begin + threadIdx.x;
    const bool is_own = choice < choices && chosen[choice] == expert;
    const unsigned mask = __ballot_sync(kAllLanes, is_own ? 1 : 0);
    if (lane_index() == 0) {
      of_warps[warp_index()] = __popc(mask);
    }
    __syncthreads();
    int64_t slot = used + __popc(mask & ((1U << lane_index()) - 1U));
    for (int warp = 0; warp < kBlock / kWarp; ++warp) {
      slot += warp < warp_index() ? of_warps[warp] : 0;
      used += of_warps[warp];
    }
    if (is_own) {
      const bool fits = slot < capacity;
      slots[choice] = fits ? static_cast<int32_t>(first + slot) : -1;
      if (fits) {
        own_sources[slot] = static_cast<int32_t>(choice);
      }
    }
    __syncthreads();
  }
  for (int64_t slot = used + threadIdx.x; slot < capacity; slot += kBlock) {
    own_sources[slot] = -1;
  }
}

/// send_rows() for map: elements of y.
template <typename X>
struct SentRow {
  const X* x;
  const int32_t* sources;
  const float* weights;  ///< null: 1
  int64_t per_token, columns;
  X* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t slot = i / columns;
    const int64_t source = sources[slot];
    Pack<X, N> out = {};
    if (source >= 0) {
      const float weight = weights == nullptr ? 1.0F : weights[source];
      const Pack<X, N> in = load_pack<N>(x + source / per_token * columns + (i - slot * columns));
#pragma unroll
      for (int j = 0; j < N; ++j) {
        store_from_float(&out.values[j], weight * load_as_float(&in.values[j]));
      }
    }
    store_pack(y + i, out);
  }
};

/// return_rows() for map: elements of y.
template <typename X>
struct ReturnedRow {
  ReturnedRows of;
  int64_t per_token, columns;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t row = i / columns;
    const auto* const slots = static_cast<const int32_t*>(of.slots.data);
    const auto* const weights = static_cast<const float*>(of.weights.data);
    X* const y = static_cast<X*>(of.y.data) + i;
    float sum[N] = {};
    if (of.adds) {
      const Pack<X, N> before = load_pack<N>(y);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sum[j] = load_as_float(&before.values[j]);
      }
    }
    if (of.addend.data != nullptr) {
      const Pack<float, N> more = load_pack<N>(static_cast<const float*>(of.addend.data) + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sum[j] += more.values[j];
      }
    }
    for (int64_t choice = row * per_token; choice < (row + 1) * per_token; ++choice) {
      const int64_t slot = slots[choice];
      if (slot < 0) {
        continue;
      }
      const float weight = weights == nullptr ? 1.0F : weights[choice];
      const Pack<X, N> in =
          load_pack<N>(static_cast<const X*>(of.x.data) + slot * columns + (i - row * columns));
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sum[j] += weight * load_as_float(&in.values[j]);
      }
    }
    Pack<X, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], sum[j]);
    }
    store_pack(y, out);
  }
};

/// The arguments of dot_rows().
template <typename X>
struct RowProducts {
  const X *a, *b;
  const int32_t* slots;
  int64_t choices, per_token, columns;
  float* products;
};

/// kSumLanes threads have a choice: partial sums and their folding are those of lane_sum().
template <typename X>
__global__ void __launch_bounds__(kBlock) dot_rows_kernel(RowProducts<X> call) {
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int64_t choice = (int64_t{blockIdx.x} * kBlock + threadIdx.x) / kSumLanes;
  const int64_t slot = choice < call.choices ? call.slots[choice] : -1;
  float sum = 0.0F;
  if (slot >= 0) {
    const X* const of_row = call.a + choice / call.per_token * call.columns;
    const X* const of_slot = call.b + slot * call.columns;
    for (int64_t i = lane; i < call.columns; i += kSumLanes) {
      sum += load_as_float(of_row + i) * load_as_float(of_slot + i);
    }
  }
  for (int bits = kSumLanes / 2; bits > 0; bits /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, bits);
  }
  if (lane == 0 && choice < call.choices) {
    call.products[choice] = sum;
  }
}

}  // namespace

void assign_slots(Stream stream, const SlotAssignment& call) {
  launch(stream, {static_cast<unsigned>(call.experts), kBlock}, assign_slots_kernel,
         call.chosen.as<int32_t>(), call.chosen.count(), call.capacity, call.begins.as<int32_t>(),
         call.slots.as<int32_t>(), call.sources.as<int32_t>());
}

void send_rows(Stream stream, ConstView x, ConstView sources, ConstView weights, bool weighted,
               View y) {
  const int64_t columns = x.shape.back();
  const bool packed = columns % kPack == 0 && is_aligned(x.data, kPack * size_of(x.dtype)) &&
                      is_aligned(y.data, kPack * size_of(y.dtype));
  with_float_type(x.dtype, [&]<typename X>(TypeTag<X>) {
    map<kPack>(
        stream, y.count(), packed,
        SentRow<X>{x.as<X>(), sources.as<int32_t>(), weighted ? weights.as<float>() : nullptr,
                   weights.shape.back(), columns, y.as<X>()});
  });
}

void return_rows(Stream stream, const ReturnedRows& call) {
  const int64_t columns = call.y.shape.back();
  const size_t bytes = kPack * size_of(call.y.dtype);
  const bool packed = columns % kPack == 0 && is_aligned(call.x.data, bytes) &&
                      is_aligned(call.y.data, bytes) &&
                      is_aligned(call.addend.data, kPack * sizeof(float));
  with_float_type(call.y.dtype, [&]<typename X>(TypeTag<X>) {
    map<kPack>(stream, call.y.count(), packed,
               ReturnedRow<X>{call, call.slots.shape.back(), columns});
  });
}

void dot_rows(Stream stream, ConstView a, ConstView b, ConstView slots, View products) {
  const int64_t choices = slots.count();
  with_float_type(a.dtype, [&]<typename X>(TypeTag<X>) {
    launch(stream, {static_cast<unsigned>(ceil_div(choices * kSumLanes, kBlock)), kBlock},
           dot_rows_kernel<X>,
           RowProducts<X>{a.as<X>(), b.as<X>(), slots.as<int32_t>(), choices, slots.shape.back(),
                          a.shape.back(), products.as<float>()});
  });
}

}  // namespace fp8train::ops::cuda
