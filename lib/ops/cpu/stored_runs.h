#pragma once
// Moments in any format, decoded into fp32 and encoded again in pieces that stay in a thread's L1
// cache. Only for files compiled by fp8train_isa_sources.

#include "ops/cpu/quantize_support.h"
#include "ops/optimizer_math.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

/// Elements of a piece: whole groups.
constexpr int64_t kStoredPiece = 1024;
static_assert(kStoredPiece % kStoredGroup == 0 && kChunk % kStoredPiece == 0);

/// body(TypeTag<T>) with T a type that a moment may have.
template <typename Body>
FP8TRAIN_HD void with_stored_type(DType dtype, Body body) {
  if (is_fp8(dtype)) {
    with_fp8_type(dtype, body);
  } else {
    with_float_type(dtype, body);
  }
}

FP8TRAIN_HD bool is_grouped(const StoredTensor& moment) {
  return moment.format.granularity == Granularity::group;
}
/// One scale for the whole tensor.
FP8TRAIN_HD bool has_tensor_scale(const StoredTensor& moment) {
  return !moment.scales.empty() && !is_grouped(moment);
}

/// body(at, length) for the runs of a piece that share a scale.
template <typename Body>
FP8TRAIN_HD void for_each_run(const StoredTensor& moment, int64_t length, Body body) {
  const int64_t run = is_grouped(moment) ? kStoredGroup : length;
  for (int64_t at = 0; at < length; at += run) {
    body(at, minimum(run, length - at));
  }
}

template <typename Code>
FP8TRAIN_HD void decode_run(const Code* __restrict codes, float factor, float* __restrict values,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = stored_value(codes[i]) * factor;
  }
}

/// The values of elements begin .. begin + length - 1.
FP8TRAIN_HD void load_run(const StoredTensor& moment, int64_t begin, int64_t length,
                          float* values) {
  const float* scales = moment.scales.as<float>();
  with_stored_type(moment.format.dtype, [&](auto tag) {
    const auto* codes = moment.codes.as<typename decltype(tag)::Type>() + begin;
    for_each_run(moment, length, [&](int64_t at, int64_t count) {
      const int64_t group = is_grouped(moment) ? (begin + at) / kStoredGroup : 0;
      const float factor = scales == nullptr ? 1.0F : reciprocal(scales[group]);
      decode_run(codes + at, factor, values + at, count);
    });
  });
}

template <typename Code>
FP8TRAIN_HD void encode_run(const float* __restrict values, float scale,
                            const uint8_t* __restrict floored, Code* __restrict codes,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = floor_code(encode_stored<Code>(values[i] * scale), floored[i] != 0);
  }
}

/// Encodes elements begin .. begin + length - 1. `tensor_scale`: where there is one. Codes of
/// elements that `floored` names do not become zero; `present` (may be the same) receives which
/// ones are not.
FP8TRAIN_HD void store_run(const StoredTensor& moment, int64_t begin, int64_t length,
                           const float* values, float tensor_scale, const uint8_t* floored,
                           uint8_t* present) {
  float* scales = moment.scales.as<float>();
  with_stored_type(moment.format.dtype, [&](auto tag) {
    auto* codes = moment.codes.as<typename decltype(tag)::Type>() + begin;
    for_each_run(moment, length, [&](int64_t at, int64_t count) {
      float scale = scales == nullptr ? 1.0F : tensor_scale;
      if (is_grouped(moment)) {
        float& kept = scales[(begin + at) / kStoredGroup];
        const float amax = float_of(largest_magnitude(values + at, count));
        scale = stored_scale(amax, kept, format_max(moment.format.dtype),
                             moment.format.scale_type == ScaleType::pow2);
        kept = scale;
      }
      encode_run(values + at, scale, floored + at, codes + at, count);
    });
    for (int64_t i = 0; i < length; ++i) {
      present[i] = is_zero_code(codes[i]) ? 0 : 1;
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
