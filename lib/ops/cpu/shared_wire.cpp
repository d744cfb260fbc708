// Compiled once per x86-64 level. The arithmetic is in ops/wire_math.h.

#include <cstring>

#include "ops/cpu/cpu_table.h"
#include "ops/cpu/stored_runs.h"
#include "ops/op_table.h"
#include "ops/wire_math.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// The values of one group of the bucket; what codes are multiplied by to become values.
FP8TRAIN_HD void load_group(const SharedBucket& bucket, int64_t group, int64_t length,
                            float* values) {
  const int64_t tensor = bucket.tensor_of_group.as<int32_t>()[group];
  const float factor = is_fp8(bucket.values.dtype)
                           ? reciprocal(copied_scale(bucket.kept_scales.as<float>()[2 * tensor]))
                           : 1.0F;
  with_stored_type(bucket.values.dtype, [&](auto tag) {
    decode_run(bucket.values.as<typename decltype(tag)::Type>() + group * kStoredGroup, factor,
               values, length);
  });
}

void shared_amax(Stream /*stream*/, const SharedBucket& bucket, View amax) {
  const int64_t count = bucket.values.count();
  std::memset(amax.data, 0, amax.bytes());
  for (int64_t group = 0; group < chunks_of(count, kStoredGroup); ++group) {
    float values[kStoredGroup];
    const int64_t length = minimum(kStoredGroup, count - group * kStoredGroup);
    load_group(bucket, group, length, values);
    float& largest = amax.as<float>()[bucket.tensor_of_group.as<int32_t>()[group]];
    largest = max_magnitude(largest, float_of(largest_magnitude(values, length)));
  }
}

void shared_scales(Stream /*stream*/, ConstView amax, const TensorFormat& format, float pre_scale,
                   View scales) {
  const int64_t tensors = scales.count();
  const int64_t ranks = amax.count() / tensors;
  for (int64_t t = 0; t < tensors; ++t) {
    float largest = 0.0F;
    for (int64_t r = 0; r < ranks; ++r) {
      largest = max_magnitude(largest, amax.as<float>()[r * tensors + t]);
    }
    scales.as<float>()[t] = shared_scale(largest, format_max(format.dtype),
                                         format.scale_type == ScaleType::pow2, pre_scale);
  }
}

void pack_shared(Stream /*stream*/, const SharedBucket& bucket, ConstView scales, View codes) {
  const int64_t count = bucket.values.count();
  const int64_t groups = chunks_of(count, kStoredGroup);
  const uint8_t nowhere[kStoredGroup] = {};
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (int64_t group = 0; group < groups; ++group) {
    float values[kStoredGroup];
    const int64_t length = minimum(kStoredGroup, count - group * kStoredGroup);
    load_group(bucket, group, length, values);
    const float scale = scales.as<float>()[bucket.tensor_of_group.as<int32_t>()[group]];
    with_fp8_type(codes.dtype, [&](auto tag) {
      encode_run(values, scale, nowhere,
                 codes.as<typename decltype(tag)::Type>() + group * kStoredGroup, length);
    });
  }
  std::memset(codes.as<uint8_t>() + count, 0, static_cast<size_t>(codes.count() - count));
}

void sum_shared(Stream /*stream*/, ConstView codes, View y) {
  const int64_t count = y.count();
  const int64_t ranks = codes.count() / count;
  with_fp8_type(y.dtype, [&](auto tag) {
    using Code = typename decltype(tag)::Type;
    const Code* from = codes.as<Code>();
    Code* to = y.as<Code>();
    for_each_chunk(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Code sum = from[i];
        for (int64_t r = 1; r < ranks; ++r) {
          sum = add_codes(sum, from[r * count + i]);
        }
        to[i] = sum;
      }
    });
  });
}

/// Values of the codes of one group.
template <typename Code>
FP8TRAIN_HD void read_group(const Code* codes, float scale, float factor, int64_t at,
                            int64_t length, const View& values) {
  float decoded[kStoredGroup];
  decode_run(codes + at, reciprocal(scale), decoded, length);
  with_float_type(values.dtype, [&](auto tag) {
    auto* to = values.as<typename decltype(tag)::Type>() + at;
    for (int64_t i = 0; i < length; ++i) {
      store_from_float(to + i, decoded[i] * factor);
    }
  });
}

void read_shared(Stream /*stream*/, ConstView codes, ConstView scales, float factor, int64_t first,
                 const SharedBucket& to) {
  const int64_t count = to.values.count();
  if (is_fp8(to.values.dtype)) {
    std::memcpy(to.values.data, codes.data, static_cast<size_t>(count));
    for (int64_t t = 0; t < scales.count(); ++t) {
      to.kept_scales.as<float>()[2 * t] = kept_scale(scales.as<float>()[t] / factor);
    }
    return;
  }
  const int64_t groups = chunks_of(count, kStoredGroup);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t at = group * kStoredGroup;
    const int32_t tensor = to.tensor_of_group.as<int32_t>()[first / kStoredGroup + group];
    with_fp8_type(codes.dtype, [&](auto tag) {
      read_group(codes.as<typename decltype(tag)::Type>(), scales.as<float>()[tensor], factor, at,
                 minimum(kStoredGroup, count - at), to.values);
    });
  }
}

}  // namespace

void fill_shared_wire(OpTable& table) {
  table.shared_amax = shared_amax;
  table.shared_scales = shared_scales;
  table.pack_shared = pack_shared;
  table.sum_shared = sum_shared;
  table.read_shared = read_shared;
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
