// Gradients that are summed as codes. The arithmetic of ops/wire_math.h, bit for bit; maxima are
// those of integers and have no order.

#include "ops/cuda/coded_tensor.h"
#include "ops/cuda/cuda_table.h"
#include "ops/wire_math.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kQuad = 4;  // elements of one thread: a warp has a group
constexpr int kGroup = static_cast<int>(kStoredGroup);
static_assert(kWarp * kQuad == kGroup);

/// A SharedBucket as kernels see it.
struct Source {
  BasicCodedTensor<false> values;
  float* kept_scales;
  const int32_t* tensor_of_group;
  int64_t count;

  /// Four values of this lane and the tensor of its group.
  template <bool Packed>
  __device__ __forceinline__ int32_t load(int64_t group, float (&out)[kQuad]) const {
    const int64_t i = group * kGroup + lane_index() * kQuad;
    const int32_t tensor = tensor_of_group[group];
    const float scale = kept_scales == nullptr ? 1.0F : copied_scale(kept_scales[2 * tensor]);
    values.load<kQuad, Packed>(i, count - i, {scale, 1.0F, 1.0F}, out);
    return tensor;
  }
};

Source source(const SharedBucket& bucket) {
  return {coded<false>(StoredTensor(bucket.values)), bucket.kept_scales.as<float>(),
          bucket.tensor_of_group.as<int32_t>(), bucket.values.count()};
}

/// body(group, tensor, values) for all groups, one to a warp.
template <bool Aligned, typename Body>
__device__ __forceinline__ void for_each_group(const Source& source, Body body) {
  const int64_t warps = int64_t{gridDim.x} * (kBlock / kWarp);
  for (int64_t group = int64_t{blockIdx.x} * (kBlock / kWarp) + warp_index();
       group * kGroup < source.count; group += warps) {
    float values[kQuad];
    const bool whole = (group + 1) * kGroup <= source.count;
    const int32_t tensor =
        Aligned && whole ? source.load<true>(group, values) : source.load<false>(group, values);
    body(group, tensor, values);
  }
}

unsigned blocks_for_groups(const Stream& stream, int64_t count) {
  return blocks_for(stream, ceil_div(count, kQuad));
}

template <bool Aligned>
__global__ void __launch_bounds__(kBlock) amax_kernel(Source source, uint32_t* amax) {
  for_each_group<Aligned>(source, [&](int64_t /*group*/, int32_t tensor, float(&values)[kQuad]) {
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

struct Clear {
  uint32_t* words;

  template <int N>
  __device__ void run(int64_t i) const {
    words[i] = 0;
  }
};

void shared_amax(Stream stream, const SharedBucket& bucket, View amax) {
  auto* words = static_cast<uint32_t*>(amax.data);
  map<1>(stream, amax.count(), true, Clear{words});
  const bool aligned = is_aligned(bucket.values.data);
  launch(stream, {blocks_for_groups(stream, bucket.values.count()), kBlock},
         aligned ? amax_kernel<true> : amax_kernel<false>, source(bucket), words);
}

struct SharedScales {
  const float* amax;
  int64_t ranks, tensors;
  float largest_code;
  bool pow2;
  float pre_scale;
  float* scales;

  template <int N>
  __device__ void run(int64_t t) const {
    float largest = 0.0F;
    for (int64_t r = 0; r < ranks; ++r) {
      largest = max_magnitude(largest, amax[r * tensors + t]);
    }
    scales[t] = shared_scale(largest, largest_code, pow2, pre_scale);
  }
};

void shared_scales(Stream stream, ConstView amax, const TensorFormat& format, float pre_scale,
                   View scales) {
  const int64_t tensors = scales.count();
  map<1>(stream, tensors, true,
         SharedScales{amax.as<float>(), amax.count() / tensors, tensors, format_max(format.dtype),
                      format.scale_type == ScaleType::pow2, pre_scale, scales.as<float>()});
}

template <typename Code, bool Aligned>
__global__ void __launch_bounds__(kBlock)
    pack_kernel(Source source, const float* scales, Code* codes) {
  for_each_group<Aligned>(source, [&](int64_t group, int32_t tensor, float(&values)[kQuad]) {
    const float scale = scales[tensor];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      values[j] *= scale;  // zeros where nothing exists
    }
    const Pack<Code, kQuad> pack = encode_pack<Code, kQuad>(values);
    const int64_t i = group * kGroup + lane_index() * kQuad;
    if (i + kQuad <= source.count) {
      store_pack(codes + i, pack);
      return;
    }
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (i + j < source.count) {
        codes[i + j] = pack.values[j];
      }
    }
  });
}

struct ClearCodes {
  uint8_t* codes;

  template <int N>
  __device__ void run(int64_t i) const {
    codes[i] = 0;
  }
};

void pack_shared(Stream stream, const SharedBucket& bucket, ConstView scales, View codes) {
  const int64_t count = bucket.values.count();
  const bool aligned = is_aligned(bucket.values.data);
  with_fp8_type(codes.dtype, [&](auto tag) {
    using Code = typename decltype(tag)::Type;
    launch(stream, {blocks_for_groups(stream, count), kBlock},
           aligned ? pack_kernel<Code, true> : pack_kernel<Code, false>, source(bucket),
           scales.as<float>(), codes.as<Code>());
  });
  map<1>(stream, codes.count() - count, true, ClearCodes{codes.as<uint8_t>() + count});
}

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

void sum_shared(Stream stream, ConstView codes, View y) {
  const int64_t count = y.count();
  const bool aligned = is_aligned(codes.data) && is_aligned(y.data) && count % 16 == 0;
  with_fp8_type(y.dtype, [&](auto tag) {
    using Code = typename decltype(tag)::Type;
    map<16>(stream, count, aligned,
            SumShared<Code>{codes.as<Code>(), codes.count() / count, count, y.as<Code>()});
  });
}

template <typename Code, typename Y>
struct ReadShared {
  const Code* codes;
  const float* scales;
  const int32_t* tensor_of_group;
  float factor;
  Y* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const float inverse = reciprocal(scales[tensor_of_group[i / kGroup]]);
    const Pack<Code, N> in = load_pack<N>(codes + i);
    Pack<Y, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], decode(in.values[j]) * inverse * factor);
    }
    store_pack(y + i, out);
  }
};

struct CopyCodes {
  const uint8_t* from;
  uint8_t* to;

  template <int N>
  __device__ void run(int64_t i) const {
    store_pack(to + i, load_pack<N>(from + i));
  }
};

struct KeepScales {
  const float* scales;
  float factor;
  float* kept;

  template <int N>
  __device__ void run(int64_t t) const {
    kept[2 * t] = kept_scale(scales[t] / factor);
  }
};

void read_shared(Stream stream, ConstView codes, ConstView scales, float factor, int64_t first,
                 const SharedBucket& to) {
  const int64_t count = to.values.count();
  const bool aligned = is_aligned(codes.data) && is_aligned(to.values.data);
  if (is_fp8(to.values.dtype)) {
    map<16>(stream, count, aligned, CopyCodes{codes.as<uint8_t>(), to.values.as<uint8_t>()});
    map<1>(stream, scales.count(), true,
           KeepScales{scales.as<float>(), factor, to.kept_scales.as<float>()});
    return;
  }
  with_fp8_type(codes.dtype, [&](auto tag) {
    with_float_type(to.values.dtype, [&](auto out) {
      using Code = typename decltype(tag)::Type;
      using Y = typename decltype(out)::Type;
      map<4>(stream, count, aligned,
             ReadShared<Code, Y>{codes.as<Code>(), scales.as<float>(),
                                 to.tensor_of_group.as<int32_t>() + first / kGroup, factor,
                                 to.values.as<Y>()});
    });
  });
}

}  // namespace

void fill_shared_wire(OpTable& table) {
  table.shared_amax = shared_amax;
  table.shared_scales = shared_scales;
  table.pack_shared = pack_shared;
  table.sum_shared = sum_shared;
  table.read_shared = read_shared;
}

}  // namespace fp8train::ops::cuda
