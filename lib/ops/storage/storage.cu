// Tensors that are stored in formats of their own. The arithmetic of numeric/codec.h and
// ops/storage/storage_math.h, bit for bit.

#include <type_traits>

#include "ops/dispatch/cuda_operations.h"
#include "ops/storage/encoded.cuh"
#include "ops/storage/storage_math.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kQuad = 4;              // elements of one thread
constexpr int kSpan = kWarp * kQuad;  // of a warp: a group
constexpr int kGroupLanes = kSavedBlock.columns / kQuad;

/// body(i, available, packed) for all spans: the first element of this thread, how many of its
/// elements exist, and `packed`, a std::bool_constant: whether they can be accessed as a pack,
/// which needs `aligned` and a whole span.
template <typename Body>
__device__ __forceinline__ void for_each_quad(int64_t count, bool aligned, Body body) {
  for_each_span<kSpan>(count, [&](int64_t begin) {
    const int64_t i = begin + lane_index() * kQuad;
    if (aligned && begin + kSpan <= count) {
      body(i, count - i, std::true_type{});
    } else {
      body(i, count - i, std::false_type{});
    }
  });
}

/// Host: blocks whose warps have a span each.
unsigned blocks_for_spans(const Stream& stream, int64_t count) {
  return blocks_for(stream, ceil_div(count, kQuad));
}

/// Where a store goes, and what decides about its scale.
struct StoreTarget {
  DeviceEncoded<> to;
  const AutoScale* automatic;  ///< null: none
  const int32_t* skip;         ///< null: never

  /// Whether the store is skipped; all threads of a launch get the same answer.
  __device__ __forceinline__ bool is_skipped() const { return skip != nullptr && *skip != 0; }
  /// The controller's factor; 1 without a controller, or where the scale stays because a value is
  /// not finite.
  __device__ __forceinline__ float factor() const {
    return automatic != nullptr && is_finite(to.scales[1]) ? automatic_factor(automatic) : 1.0F;
  }
};

/// The arguments of the kernels of a store.
template <typename X>
struct StoreCall : StoreTarget {
  const X* __restrict__ x;
  int64_t count;
  bool add, aligned;

  /// The values that are stored for elements i ..: x, or the sum.
  template <bool Packed>
  __device__ __forceinline__ void load(int64_t i, int64_t available,
                                       const ScaleExpansion& old_scale,
                                       float (&values)[kQuad]) const {
    float old[kQuad] = {};
    if (add) {
      to.load<kQuad, Packed>(i, available, old_scale, old);
    }
    load_values<kQuad, Packed>(x + i, values, available);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      values[j] = j < available ? finite_or_nan(old[j] + values[j]) : 0.0F;
    }
  }
};

/// The largest magnitude to be stored, into the slot next to the scale.
template <typename X>
__global__ void __launch_bounds__(kBlock) store_amax_kernel(StoreCall<X> call) {
  if (call.is_skipped()) {
    return;
  }
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kBlock / kWarp);
  uint32_t largest = 0;
  for_each_quad(call.count, call.aligned, [&](int64_t i, int64_t available, auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    float values[kQuad];
    call.template load<kPacked>(i, available, call.to.scale_at(i, available), values);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      largest = Largest{}(largest, bits_of(values[j]) & 0x7FFFFFFFU);
    }
  });
  call.to.raise_tensor_amax(largest, shared);
}

/// Stores the values, with the scale that follows from them or from that slot.
template <typename X>
__global__ void __launch_bounds__(kBlock) store_kernel(StoreCall<X> call) {
  if (call.is_skipped()) {
    return;
  }
  const float factor = call.factor();
  for_each_quad(call.count, call.aligned, [&](int64_t i, int64_t available, auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    float values[kQuad];
    const ScaleExpansion old_scale = call.to.scale_at(i, available);
    call.template load<kPacked>(i, available, old_scale, values);
    ScaleExpansion scale = call.to.new_scale(values, old_scale);
    scale.scale *= factor;
    call.to.template store<kQuad, kPacked>(i, available, scale, 0, values, {});
  });
}

/// Ends a store whose threads all have read the old scale.
struct KeepScale {
  StoreTarget target;

  template <int N>
  __device__ void run(int64_t /*i*/) const {
    if (target.is_skipped()) {
      return;
    }
    const float factor = target.factor();
    target.to.keep_tensor_scale();
    target.to.scales[0] *= factor;
  }
};

/// Starts the kernels of a store of X in a format that lasts.
template <typename X>
void store_as(const Stream& stream, const Store& call) {
  const StoreTarget target = {encoded(call.to), call.automatic, call.skip};
  const int64_t count = call.x.count();
  const bool aligned = is_aligned(call.x.data) && is_aligned(call.to.codes.data);
  const StoreCall<X> arguments = {target, call.x.as<X>(), count, call.add, aligned};
  const LaunchShape shape = {blocks_for_spans(stream, count), kBlock};
  const bool by_tensor = target.to.has_tensor_scale();
  if (by_tensor && call.step != CastStep::codes) {
    launch(stream, shape, store_amax_kernel<X>, arguments);
  }
  if (call.step == CastStep::amax) {
    return;
  }
  launch(stream, shape, store_kernel<X>, arguments);
  if (by_tensor) {
    map<1>(stream, 1, true, KeepScale{target});
  }
}

template <typename Y>
__global__ void __launch_bounds__(kBlock)
    read_kernel(DeviceEncoded<> x, Y* __restrict__ y, int64_t count, bool aligned) {
  for_each_quad(count, aligned, [&](int64_t i, int64_t available, auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    float values[kQuad];
    x.load<kQuad, kPacked>(i, available, x.scale_at(i, available), values);
    store_values<kQuad, kPacked>(y + i, values, available);
  });
}

/// Adds how many codes have the largest magnitude to the controller's counter.
template <typename Code>
__global__ void __launch_bounds__(kBlock)
    count_largest_kernel(const Code* __restrict__ codes, int64_t count, AutoScale* automatic) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kBlock / kWarp);
  uint32_t found = 0;
  const int64_t stride = int64_t{gridDim.x} * kBlock;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < count; i += stride) {
    found += is_largest(codes[i]) ? 1U : 0U;
  }
  found = block_reduce<kBlock>(found, Sum{}, shared);
  if (threadIdx.x == 0) {
    atomicAdd(&automatic->at_maximum, found);
  }
}

/// Moves the factors of many controllers, whose codes were counted on several ranks.
struct NextFactors {
  const AutoScale* of_ranks;
  int64_t ranks;
  AutoScale* scales;
  int64_t count;
  const int32_t* skip;

  template <int N>
  __device__ void run(int64_t t) const {
    scales[t] = next_auto_scale(of_ranks, ranks, count, t, scales[t], *skip != 0);
  }
};

/// Stores x in saved_groups(), a group for each four lanes.
template <typename X>
__global__ void __launch_bounds__(kBlock)
    store_groups_kernel(const X* __restrict__ x, e4m3* __restrict__ codes,
                        bf16* __restrict__ scales, int64_t count, bool aligned) {
  for_each_quad(count, aligned, [&](int64_t i, int64_t available, auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    float values[kQuad];
    load_values<kQuad, kPacked>(x + i, values, available);
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      largest = Largest{}(largest, bits_of(values[j]) & 0x7FFFFFFFU);
    }
#pragma unroll
    for (int bits = kGroupLanes / 2; bits > 0; bits /= 2) {
      largest = Largest{}(largest, __shfl_xor_sync(kAllLanes, largest, bits));
    }
    const bf16 scale = divided_scale(float_of(largest));
    if (available > 0 && i % kSavedBlock.columns == 0) {
      scales[i / kSavedBlock.columns] = scale;
    }
    Pack<e4m3, kQuad> pack;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      pack.values[j] = divided_code(values[j], scale);
    }
    if constexpr (kPacked) {
      store_pack(codes + i, pack);
    } else {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        if (j < available) {
          codes[i + j] = pack.values[j];
        }
      }
    }
  });
}

/// Reads saved_groups().
template <typename Y>
struct ReadGroups {
  const e4m3* codes;
  const bf16* scales;
  Y* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const float scale = decode(scales[i / kSavedBlock.columns]);
    const Pack<e4m3, N> in = load_pack<N>(codes + i);
    Pack<Y, N> out;
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], decode(in.values[j]) * scale);
    }
    store_pack(y + i, out);
  }
};

template <typename X>
void store_groups(const Stream& stream, const Store& call) {
  const int64_t count = call.x.count();
  const bool aligned = is_aligned(call.x.data) && is_aligned(call.to.codes.data, kQuad);
  launch(stream, {blocks_for_spans(stream, count), kBlock}, store_groups_kernel<X>, call.x.as<X>(),
         call.to.codes.as<e4m3>(), call.to.scales.as<bf16>(), count, aligned);
}

}  // namespace

void store(Stream stream, const Store& call) {
  if (call.x.count() == 0) {
    return;
  }
  with_float_type(call.x.dtype, [&]<typename X>(TypeTag<X>) {
    codec_of(call.to.format) == Codec::divided ? store_groups<X>(stream, call)
                                               : store_as<X>(stream, call);
  });
}

void read_stored(Stream stream, const Encoded& x, View y) {
  const int64_t count = y.count();
  if (count == 0) {
    return;
  }
  with_float_type(y.dtype, [&]<typename Y>(TypeTag<Y>) {
    if (codec_of(x.format) == Codec::divided) {
      constexpr int kPack = 16 / static_cast<int>(sizeof(Y));  // of one group: starts are multiples
      return map<kPack>(stream, count, is_aligned(y.data) && is_aligned(x.codes.data, kPack),
                        ReadGroups<Y>{x.codes.as<e4m3>(), x.scales.as<bf16>(), y.as<Y>()});
    }
    const LaunchShape shape = {blocks_for_spans(stream, count), kBlock};
    const bool aligned = is_aligned(y.data) && is_aligned(x.codes.data);
    launch(stream, shape, read_kernel<Y>, encoded(x), y.as<Y>(), count, aligned);
  });
}

void count_at_maximum(Stream stream, ConstView codes, AutoScale* automatic) {
  const int64_t count = codes.count();
  with_fp8_type(codes.dtype, [&]<typename Code>(TypeTag<Code>) {
    launch(stream, {blocks_for(stream, count), kBlock}, count_largest_kernel<Code>,
           codes.as<Code>(), count, automatic);
  });
}

void update_auto_scales(Stream stream, const AutoScale* of_ranks, int64_t ranks, AutoScale* scales,
                        int64_t count, const int32_t* skip) {
  map<1>(stream, count, true, NextFactors{of_ranks, ranks, scales, count, skip});
}

}  // namespace fp8train::ops::cuda
