// Gradients that are summed as codes. The arithmetic of ops/exchange/wire_math.h, bit for bit;
// maxima are those of integers and have no order.

#include "base/math.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/exchange/wire_math.h"
#include "ops/storage/encoded.cuh"

namespace fp8train::ops::cuda {
namespace {

constexpr int kQuad = 4;  // elements of one thread: a warp has a group
constexpr int kGroup = static_cast<int>(kRangeAlignment);
static_assert(kWarp * kQuad == kGroup);

/// A SharedBucket as kernels see it.
struct Source {
  DeviceEncoded<false> values;
  float* code_scales;
  const int32_t* tensor_of_group;
  int64_t count;

  /// Four values of this lane and the tensor of its group.
  template <bool Aligned>
  __device__ __forceinline__ int32_t load(int64_t group, float (&out)[kQuad]) const {
    const int64_t i = group * kGroup + lane_index() * kQuad;
    const int32_t tensor = tensor_of_group[group];
    const float scale = code_scales == nullptr ? 1.0F : copied_scale(code_scales[2 * tensor]);
    if (Aligned && (group + 1) * kGroup <= count) {
      values.load<kQuad, true>(i, count - i, {scale, 1.0F, 1.0F}, out);
    } else {
      values.load<kQuad, false>(i, count - i, {scale, 1.0F, 1.0F}, out);
    }
    return tensor;
  }
};

Source source(const SharedBucket& bucket) {
  return {encoded<false>(Encoded(bucket.values)), bucket.code_scales.as<float>(),
          bucket.tensor_of_group.as<int32_t>(), bucket.values.count()};
}

/// The position of code i of [chunks, chunk] in the bucket.
struct CodeLocation {
  int64_t chunk;
  ChunkRange range;

  __device__ __forceinline__ int64_t of(int64_t i) const {
    return chunk_begin(range, chunk, i / chunk) + i % chunk;
  }
};

FP8TRAIN_HD int64_t groups_of(int64_t count) {
  return ceil_div(count, kGroup);
}

unsigned blocks_for_groups(const Stream& stream, int64_t count) {
  return blocks_for(stream, ceil_div(count, kQuad));
}

/// Raises amax[t] of each tensor. A warp has a group at a time.
template <bool Aligned>
__global__ void __launch_bounds__(kBlock) amax_kernel(Source source, uint32_t* amax) {
  for_each_span<1>(groups_of(source.count), [&](int64_t group) {
    float values[kQuad];
    const int32_t tensor = source.load<Aligned>(group, values);
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      largest = Largest{}(largest, bits_of(values[j]) & 0x7FFFFFFFU);
    }
    largest = warp_reduce(largest, Largest{});
    if (lane_index() == 0) {
      atomicMax(reinterpret_cast<unsigned*>(amax + tensor),
                bits_of(max_magnitude(0.0F, float_of(largest))));
    }
  });
}

/// shared_scales() for map: a tensor for each index.
struct FindSharedScales {
  SharedScales all;
  float* scales;

  template <int N>
  __device__ void run(int64_t t) const {
    scales[t] = all.of(t);
  }
};

/// A warp has a group of codes at a time.
template <typename Code, bool Aligned>
__global__ void __launch_bounds__(kBlock)
    pack_kernel(Source source, CodeLocation location, int64_t groups, const float* scales,
                Code* codes) {
  for_each_span<1>(groups, [&](int64_t group) {
    const int64_t begin = location.of(group * kGroup);
    Pack<Code, kQuad> pack = {};
    if (begin < source.count) {
      float values[kQuad];
      const float scale = scales[source.load<Aligned>(begin / kGroup, values)];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        values[j] *= scale;
      }
      pack = encode_pack<Code, kQuad>(values);
    }
    const int64_t within = lane_index() * kQuad;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (begin + within + j >= source.count) {
        pack.values[j] = Code{};  // also where the scale is NaN
      }
    }
    store_pack(codes + group * kGroup + within, pack);
  });
}

/// A warp counts the codes of a group at a time.
template <typename Code>
__global__ void __launch_bounds__(kBlock)
    count_kernel(const Code* codes, int64_t count, const int32_t* tensor_of_group,
                 AutoScale* const* automatic) {
  for_each_span<1>(groups_of(count), [&](int64_t group) {
    const int64_t i = group * kGroup + lane_index() * kQuad;
    uint32_t found = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      found += i + j < count && is_largest(codes[i + j]) ? 1U : 0U;
    }
    found = warp_reduce(found, Sum{});
    if (lane_index() == 0 && found > 0) {
      atomicAdd(&automatic[tensor_of_group[group]]->at_maximum, found);
    }
  });
}

/// sum_shared() for map.
template <typename Code>
struct SumShared {
  const Code* codes;
  int64_t ranks, count;
  Code* y;

  template <int N>
  __device__ void run(int64_t i) const {
    Pack<Code, N> sum = load_pack<N>(codes + i);
    for (int64_t r = 1; r < ranks; ++r) {
      const Pack<Code, N> part = load_pack<N>(codes + r * count + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sum.values[j] = add_codes(sum.values[j], part.values[j]);
      }
    }
    store_pack(y + i, sum);
  }
};

/// Writes the elements of `run` from y[at] on, up to y[count - 1].
template <typename T, int N>
__device__ __forceinline__ void store_run(T* y, int64_t at, int64_t count, const Pack<T, N>& run) {
  if (at + N <= count) {
    store_pack(y + at, run);
    return;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (at + j < count) {
      y[at + j] = run.values[j];
    }
  }
}

/// Writes values of codes to their positions in the bucket. N codes always lie in one chunk.
template <typename Code, typename Y>
struct ReadShared {
  const Code* codes;
  const float* scales;
  const int32_t* tensor_of_group;
  CodeLocation location;
  float factor;
  int64_t count;  // of y
  Y* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t to = location.of(i);
    if (to >= count) {
      return;
    }
    const float inverse = reciprocal(scale_of_mean(scales[tensor_of_group[to / kGroup]], factor));
    const Pack<Code, N> in = load_pack<N>(codes + i);
    Pack<Y, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], decode(in.values[j]) * inverse);
    }
    store_run(y, to, count, out);
  }
};

/// Copies codes to their positions in the bucket.
struct CopyCodes {
  const uint8_t* from;
  CodeLocation location;
  int64_t count;  // of `to`
  uint8_t* to;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t at = location.of(i);
    if (at < count) {
      store_run(to, at, count, load_pack<N>(from + i));
    }
  }
};

/// Stores the scales of codes that are stored as they are.
struct KeepScales {
  const float* scales;
  float factor;
  float* stored;

  template <int N>
  __device__ void run(int64_t t) const {
    stored[2 * t] = scale_to_store(scale_of_mean(scales[t], factor));
  }
};

}  // namespace

void shared_amax(Stream stream, const SharedBucket& bucket, View amax) {
  auto* words = static_cast<uint32_t*>(amax.data);
  check_cuda(cudaMemsetAsync(amax.data, 0, amax.bytes(), cuda_context(stream).stream),
             "resetting maxima");
  const bool aligned = is_aligned(bucket.values.data);
  launch(stream, {blocks_for_groups(stream, bucket.values.count()), kBlock},
         aligned ? amax_kernel<true> : amax_kernel<false>, source(bucket), words);
}

void shared_scales(Stream stream, ConstView amax, const TensorFormat& format, float pre_scale,
                   View scales, ConstView automatic) {
  const SharedScales all = shared_scales_of(amax, format, pre_scale, scales.count(), automatic);
  map<1>(stream, all.tensors, true, FindSharedScales{all, scales.as<float>()});
}

void pack_shared(Stream stream, const SharedBucket& bucket, ConstView scales, View codes,
                 const ChunkRange& range) {
  const bool aligned = is_aligned(bucket.values.data);
  with_fp8_type(codes.dtype, [&]<typename Code>(TypeTag<Code>) {
    launch(stream, {blocks_for_groups(stream, codes.count()), kBlock},
           aligned ? pack_kernel<Code, true> : pack_kernel<Code, false>, source(bucket),
           CodeLocation{codes.shape.back(), range}, codes.count() / kGroup, scales.as<float>(),
           codes.as<Code>());
  });
}

void count_largest(Stream stream, ConstView codes, ConstView tensor_of_group, ConstView automatic) {
  with_fp8_type(codes.dtype, [&]<typename Code>(TypeTag<Code>) {
    launch(stream, {blocks_for_groups(stream, codes.count()), kBlock}, count_kernel<Code>,
           codes.as<Code>(), codes.count(), tensor_of_group.as<int32_t>(),
           automatic.as<AutoScale*>());
  });
}

void sum_shared(Stream stream, ConstView codes, View y) {
  const int64_t count = y.count();
  const bool aligned = is_aligned(codes.data) && is_aligned(y.data) && count % 16 == 0;
  with_fp8_type(y.dtype, [&]<typename Code>(TypeTag<Code>) {
    map<16>(stream, count, aligned,
            SumShared<Code>{codes.as<Code>(), codes.count() / count, count, y.as<Code>()});
  });
}

void read_shared(Stream stream, ConstView codes, ConstView scales, float factor,
                 const SharedBucket& to, const ChunkRange& range) {
  const int64_t count = to.values.count();
  const bool aligned = is_aligned(codes.data) && is_aligned(to.values.data);
  const CodeLocation location = {codes.shape.back(), range};
  if (is_fp8(to.values.dtype)) {
    map<16>(stream, codes.count(), aligned,
            CopyCodes{codes.as<uint8_t>(), location, count, to.values.as<uint8_t>()});
    if (!to.code_scales.empty()) {
      map<1>(stream, scales.count(), true,
             KeepScales{scales.as<float>(), factor, to.code_scales.as<float>()});
    }
    return;
  }
  with_fp8_type(codes.dtype, [&]<typename Code>(TypeTag<Code>) {
    with_float_type(to.values.dtype, [&]<typename Y>(TypeTag<Y>) {
      map<4>(stream, codes.count(), aligned,
             ReadShared<Code, Y>{codes.as<Code>(), scales.as<float>(),
                                 to.tensor_of_group.as<int32_t>(), location, factor, count,
                                 to.values.as<Y>()});
    });
  });
}

}  // namespace fp8train::ops::cuda
