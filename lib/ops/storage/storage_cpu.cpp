// Compiled once per CPU level. The arithmetic is in ops/storage/stored_math.h and
// ops/storage/storage_math.h.

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
    for (int64_t i = 0; i < length; ++i) {
      values[i] = 0.0F;
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    values[i] = finite_or_nan(values[i] + load_as_float(x + i));
  }
}

/// The new scale of a tensor that has one: a first pass over the values. Maxima are integers: no
/// order of threads changes them.
template <typename X>
FP8TRAIN_HD float find_tensor_scale(const Store& call) {
  const int64_t count = call.x.count();
  const int64_t pieces = ceil_div(count, kStoredPiece);
  const auto find_largest = [&](int64_t index, CastCounts& counts) {
    const int64_t begin = index * kStoredPiece;
    const int64_t length = minimum(kStoredPiece, count - begin);
    float values[kStoredPiece];
    values_to_store<X>(call, begin, length, values);
    counts.raise(largest_magnitude(values, length));
  };
  const uint32_t largest = count_pieces(pieces, count, find_largest).largest;
  const TensorFormat& format = call.to.format;
  const float old = *call.to.scales.as<float>();
  if (!is_finite(float_of(largest))) {
    return old;
  }
  return stored_scale(float_of(largest), old, format_max(format.dtype),
                      format.scale_type == ScaleType::pow2) *
         automatic_factor(call.automatic);
}

/// compress() for one group of `length` values.
template <typename X>
FP8TRAIN_HD void compress_group(const X* __restrict x, int64_t length, e4m3* __restrict codes,
                                bf16* scale_inv) {
  float values[kCompressedGroup] = {};
  for (int64_t i = 0; i < length; ++i) {
    values[i] = load_as_float(x + i);
  }
  const bf16 scale = compressed_scale(float_of(largest_magnitude(values, kCompressedGroup)));
  *scale_inv = scale;
  for (int64_t i = 0; i < length; ++i) {
    codes[i] = compressed_code(values[i], scale);
  }
}

}  // namespace

void store(Stream /*stream*/, const Store& call) {
  if (call.skip != nullptr && *call.skip != 0) {
    return;
  }
  with_float_type(call.x.dtype, [&](auto tag) {
    using X = typename decltype(tag)::Type;
    const bool by_tensor = has_tensor_scale(call.to);
    const float scale = by_tensor ? find_tensor_scale<X>(call) : 1.0F;
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

void read_stored(Stream /*stream*/, const StoredTensor& x, View y) {
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

void update_auto_scale(Stream /*stream*/, ConstView codes, AutoScale* automatic,
                       const int32_t* skip) {
  if (*skip != 0) {
    return;
  }
  const int64_t count = codes.count();
  int64_t largest = 0;
  with_fp8_type(codes.dtype, [&](auto tag) {
    const auto* from = codes.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) reduction(+ : largest) if (count >= kParallelElements)
    for (int64_t i = 0; i < count; ++i) {
      largest += is_largest(from[i]) ? 1 : 0;
    }
  });
  automatic->factor =
      next_automatic_factor(automatic->factor, static_cast<uint32_t>(largest), count);
}

void update_auto_scales(Stream /*stream*/, const AutoScale* of_ranks, int64_t ranks,
                        AutoScale* scales, int64_t count, const int32_t* skip) {
  for (int64_t t = 0; t < count; ++t) {
    scales[t] = next_auto_scale(of_ranks, ranks, count, t, scales[t], *skip != 0);
  }
}

void compress(Stream /*stream*/, ConstView x, const CompressedView& out) {
  const int64_t count = x.count();
  const int64_t groups = ceil_div(count, kCompressedGroup);
  e4m3* codes = out.codes.as<e4m3>();
  bf16* scales = out.scale_inv.as<bf16>();
  with_float_type(x.dtype, [&](auto tag) {
    const auto* from = x.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t begin = group * kCompressedGroup;
      compress_group(from + begin, minimum(kCompressedGroup, count - begin), codes + begin,
                     scales + group);
    }
  });
}

void decompress(Stream /*stream*/, const CompressedView& x, View y) {
  const int64_t count = y.count();
  const int64_t groups = ceil_div(count, kCompressedGroup);
  const e4m3* codes = x.codes.as<e4m3>();
  const bf16* scales = x.scale_inv.as<bf16>();
  with_float_type(y.dtype, [&](auto tag) {
    auto* to = y.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
    for (int64_t group = 0; group < groups; ++group) {
      const float scale = decode(scales[group]);
      const int64_t end = minimum(count, (group + 1) * kCompressedGroup);
      for (int64_t i = group * kCompressedGroup; i < end; ++i) {
        store_from_float(to + i, decode(codes[i]) * scale);
      }
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
