// Compiled once per CPU level. The arithmetic is in numeric/codec.h and ops/storage/storage_math.h.

#include "base/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/op_table.h"
#include "ops/storage/storage_math.h"
#include "ops/storage/stored_runs_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// The values that are stored for elements begin .. begin + length - 1: x, or the sum.
template <typename X>
FP8TRAIN_HD void values_to_store(const Store& call, int64_t begin, int64_t length, float* values) {
  const X* __restrict x = call.x.as<X>() + begin;
  if (call.add) {
    load_run(call.to, begin, length, values);
  } else {
    // For backward zeros keep their sign.
    const float nothing = codec_of(call.to.format) == Codec::divided ? -0.0F : 0.0F;
    for (int64_t i = 0; i < length; ++i) {
      values[i] = nothing;
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    values[i] = finite_or_nan(values[i] + load_as_float(x + i));
  }
}

/// The largest magnitude to be stored, as bits. Maxima are integers: no order of threads changes
/// them.
template <typename X>
FP8TRAIN_HD uint32_t find_largest(const Store& call) {
  const int64_t count = call.x.count();
  const int64_t pieces = ceil_div(count, kStoredPiece);
  const auto of_piece = [&](int64_t index, CastCounts& counts) {
    const int64_t begin = index * kStoredPiece;
    const int64_t length = minimum(kStoredPiece, count - begin);
    float values[kStoredPiece];
    values_to_store<X>(call, begin, length, values);
    counts.raise(largest_magnitude(values, length));
  };
  return count_pieces(pieces, count, of_piece).largest;
}

/// The new scale of a tensor that has one.
FP8TRAIN_HD float find_tensor_scale(const Store& call, uint32_t largest) {
  const float scale = new_scale(call.to, largest, *call.to.scales.as<float>());
  return is_finite(float_of(largest)) ? scale * automatic_factor(call.automatic) : scale;
}

}  // namespace

void store(Stream /*stream*/, const Store& call) {
  if (call.skip != nullptr && *call.skip != 0) {
    return;
  }
  with_float_type(call.x.dtype, [&]<typename X>(TypeTag<X>) {
    const bool by_tensor = has_tensor_scale(call.to);
    float* const amax = by_tensor ? call.to.scales.as<float>() + 1 : nullptr;
    uint32_t largest = 0;
    if (by_tensor) {
      largest = call.step == CastStep::codes ? bits_of(*amax) : find_largest<X>(call);
      *amax = call.step == CastStep::amax ? float_of(largest) : 0.0F;
    }
    if (call.step == CastStep::amax) {
      return;
    }
    const float scale = by_tensor ? find_tensor_scale(call, largest) : 1.0F;
    for_each_chunk<kStoredPiece>(call.x.count(), [&](int64_t begin, int64_t end) {
      float values[kStoredPiece];
      values_to_store<X>(call, begin, end - begin, values);
      store_run(call.to, begin, end - begin, {.values = values, .tensor_scale = scale});
    });
    if (by_tensor) {
      *call.to.scales.as<float>() = scale;
    }
  });
}

void read_stored(Stream /*stream*/, const Encoded& x, View y) {
  with_float_type(y.dtype, [&](auto tag) {
    auto* to = y.as<typename decltype(tag)::Type>();
    for_each_chunk<kStoredPiece>(y.count(), [&](int64_t begin, int64_t end) {
      float values[kStoredPiece];
      load_run(x, begin, end - begin, values);
      for (int64_t i = begin; i < end; ++i) {
        store_from_float(to + i, values[i - begin]);
      }
    });
  });
}

void count_at_maximum(Stream /*stream*/, ConstView codes, AutoScale* automatic) {
  const int64_t count = codes.count();
  int64_t largest = 0;
  with_fp8_type(codes.dtype, [&](auto tag) {
    const auto* from = codes.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) reduction(+ : largest) if (count >= kParallelElements)
    for (int64_t i = 0; i < count; ++i) {
      largest += is_largest(from[i]) ? 1 : 0;
    }
  });
  automatic->at_maximum = static_cast<uint32_t>(largest);
}

void update_auto_scales(Stream /*stream*/, const AutoScale* of_ranks, int64_t ranks,
                        AutoScale* scales, int64_t count, const int32_t* skip) {
  for (int64_t t = 0; t < count; ++t) {
    scales[t] = next_auto_scale(of_ranks, ranks, count, t, scales[t], *skip != 0);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
