// Compiled once per CPU level. The arithmetic is in ops/exchange/wire_math.h.

#include <cstring>

#include "base/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/op_table.h"
#include "ops/exchange/wire_math.h"
#include "ops/storage/stored_runs_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// The values of one group of the bucket; codes are multiplied by the reciprocal of their tensor's
/// scale.
FP8TRAIN_HD void load_group(const SharedBucket& bucket, int64_t group, int64_t length,
                            float* values) {
  const int64_t tensor = bucket.tensor_of_group.as<int32_t>()[group];
  const float scale =
      is_fp8(bucket.values.dtype) ? copied_scale(bucket.code_scales.as<float>()[2 * tensor]) : 1.0F;
  load_run(bucket.values, group * kRangeAlignment, length, scale, values);
}

/// body(element of the codes, element of the bucket, how many it has) for all groups of codes.
template <typename Body>
FP8TRAIN_HD void for_each_group(const Shape& codes, const ChunkRange& range, int64_t count,
                                Body body) {
  const int64_t chunk = codes.back();
  const int64_t groups = codes.count() / kRangeAlignment;
#pragma omp parallel for schedule(static) if (codes.count() >= kParallelElements)
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t at = group * kRangeAlignment;
    const int64_t element = chunk_begin(range, chunk, at / chunk) + at % chunk;
    const int64_t left = count - element;
    body(at, element, left < 0 ? 0 : minimum(kRangeAlignment, left));
  }
}

}  // namespace

void shared_amax(Stream /*stream*/, const SharedBucket& bucket, View amax) {
  const int64_t count = bucket.values.count();
  std::memset(amax.data, 0, amax.bytes());
  for (int64_t group = 0; group < ceil_div(count, kRangeAlignment); ++group) {
    float values[kRangeAlignment];
    const int64_t length = minimum(kRangeAlignment, count - group * kRangeAlignment);
    load_group(bucket, group, length, values);
    float& largest = amax.as<float>()[bucket.tensor_of_group.as<int32_t>()[group]];
    largest = max_magnitude(largest, float_of(largest_magnitude(values, length)));
  }
}

void shared_scales(Stream /*stream*/, ConstView amax, const TensorFormat& format, float pre_scale,
                   View scales, ConstView automatic) {
  const SharedScales all = shared_scales_of(amax, format, pre_scale, scales.count(), automatic);
  for (int64_t t = 0; t < all.tensors; ++t) {
    scales.as<float>()[t] = all.of(t);
  }
}

void pack_shared(Stream /*stream*/, const SharedBucket& bucket, ConstView scales, View codes,
                 const ChunkRange& range) {
  for_each_group(codes.shape, range, bucket.values.count(),
                 [&](int64_t at, int64_t element, int64_t length) {
                   uint8_t* to = codes.as<uint8_t>() + at;
                   std::memset(to + length, 0, static_cast<size_t>(kRangeAlignment - length));
                   if (length == 0) {
                     return;
                   }
                   const int64_t group = element / kRangeAlignment;
                   float values[kRangeAlignment];
                   load_group(bucket, group, length, values);
                   const int32_t tensor = bucket.tensor_of_group.as<int32_t>()[group];
                   store_run(codes, at, length,
                             {.values = values, .tensor_scale = scales.as<float>()[tensor]});
                 });
}

void sum_shared(Stream /*stream*/, ConstView codes, View y) {
  const int64_t count = y.count();
  const int64_t ranks = codes.count() / count;
  with_fp8_type(y.dtype, [&]<typename Code>(TypeTag<Code>) {
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

void count_largest(Stream /*stream*/, ConstView codes, ConstView tensor_of_group,
                   ConstView automatic) {
  const int64_t count = codes.count();
  with_fp8_type(codes.dtype, [&](auto tag) {
    const auto* from = codes.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
    for (int64_t group = 0; group < ceil_div(count, kRangeAlignment); ++group) {
      const int64_t begin = group * kRangeAlignment;
      uint32_t found = 0;
      for (int64_t i = begin; i < minimum(begin + kRangeAlignment, count); ++i) {
        found += is_largest(from[i]) ? 1U : 0U;
      }
      if (found == 0) {
        continue;
      }
      AutoScale& scale = *automatic.as<AutoScale*>()[tensor_of_group.as<int32_t>()[group]];
#pragma omp atomic
      scale.at_maximum += found;  // an integer: in any order
    }
  });
}

void read_shared(Stream /*stream*/, ConstView codes, ConstView scales, float factor,
                 const SharedBucket& to, const ChunkRange& range) {
  const bool keeps = is_fp8(to.values.dtype);
  for_each_group(
      codes.shape, range, to.values.count(), [&](int64_t at, int64_t element, int64_t length) {
        if (length == 0) {
          return;
        }
        if (keeps) {
          std::memcpy(to.values.as<uint8_t>() + element, codes.as<uint8_t>() + at,
                      static_cast<size_t>(length));
          return;
        }
        const int32_t tensor = to.tensor_of_group.as<int32_t>()[element / kRangeAlignment];
        // With the scale that is stored with codes that stay codes, so that both have the same
        // bits.
        const float scale = scale_of_mean(scales.as<float>()[tensor], factor);
        float values[kRangeAlignment];
        load_run(read_only(codes), at, length, scale, values);
        store_run(to.values, element, length, {.values = values});
      });
  if (keeps && !to.code_scales.empty()) {
    for (int64_t t = 0; t < scales.count(); ++t) {
      to.code_scales.as<float>()[2 * t] =
          scale_to_store(scale_of_mean(scales.as<float>()[t], factor));
    }
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
