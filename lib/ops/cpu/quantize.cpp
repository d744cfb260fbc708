// Compiled once per x86-64 level. Codes are those of numeric/convert.h's encode; the loops are
// written so that the compiler vectorizes them.

#include "numeric/scale.h"
#include "ops/cpu/cpu_table.h"
#include "ops/cpu/kernel_support.h"
#include "ops/scaling_math.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

// The bit pattern of |x| in x's own width: ordered like the value, and every NaN is above infinity.
FP8TRAIN_HD uint32_t magnitude_bits(const float* x) {
  return bits_of(*x) & 0x7FFFFFFFU;
}
FP8TRAIN_HD uint16_t magnitude_bits(const bf16* x) {
  return static_cast<uint16_t>(x->bits & 0x7FFFU);
}
FP8TRAIN_HD uint16_t magnitude_bits(const f16* x) {
  return static_cast<uint16_t>(x->bits & 0x7FFFU);
}
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<float> /*tag*/) {
  return float_of(bits);
}
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<bf16> /*tag*/) {
  return decode(bf16{static_cast<uint16_t>(bits)});
}
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<f16> /*tag*/) {
  return decode(f16{static_cast<uint16_t>(bits)});
}

template <typename X>
FP8TRAIN_HD uint32_t largest_magnitude(const X* __restrict x, int64_t count) {
  decltype(magnitude_bits(x)) largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = magnitude_bits(x + i);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

template <typename X, typename Code>
FP8TRAIN_HD void encode_chunk(const X* __restrict x, float scale, Code* __restrict codes,
                              int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = encode<Code>(load_as_float(x + i) * scale);
  }
}

template <typename X, typename Code>
FP8TRAIN_HD void count_chunk(const X* __restrict x, float scale, const Code* __restrict codes,
                             int64_t count, uint64_t& saturated, uint64_t& underflow) {
  constexpr float kMax = saturation_threshold(dtype_of<Code>());
  uint32_t beyond = 0;
  uint32_t vanished = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = load_as_float(x + i) * scale;
    beyond += scaled > kMax || scaled < -kMax ? 1U : 0U;
    vanished += magnitude_bits(x + i) != 0 && (codes[i].bits & 0x7FU) == 0 ? 1U : 0U;
  }
  saturated += beyond;
  underflow += vanished;
}

void amax(Stream /*stream*/, ConstView x, float* result) {
  with_float_type(x.dtype, [&](auto tag) {
    const auto* data = x.as<typename decltype(tag)::Type>();
    const int64_t count = x.count();
    const int64_t chunks = chunks_of(count, kChunk);
    uint32_t largest = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) if (count >= kParallelElements)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t begin = chunk * kChunk;
      const uint32_t here = largest_magnitude(data + begin, minimum(kChunk, count - begin));
      largest = here > largest ? here : largest;
    }
    *result = max_magnitude(value_of_magnitude(largest, tag), 0.0F);
  });
}

/// The chunk is read from memory once: its further passes find it in L1. Maxima and counts are
/// integers, so that no order of threads changes them.
template <typename X, typename Code>
FP8TRAIN_HD void quantize_array(const X* x, Code* codes, int64_t count, float scale,
                                float* amax_out, QuantizeStatistics* statistics) {
  const bool wants_amax = amax_out != nullptr;
  const bool wants_statistics = statistics != nullptr;
  const int64_t chunks = chunks_of(count, kChunk);
  uint32_t largest = 0;
  uint64_t saturated = 0;
  uint64_t underflow = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) \
    reduction(+ : saturated, underflow) if (count >= kParallelElements)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * kChunk;
    const int64_t length = minimum(kChunk, count - begin);
    if (wants_amax) {
      const uint32_t here = largest_magnitude(x + begin, length);
      largest = here > largest ? here : largest;
    }
    encode_chunk(x + begin, scale, codes + begin, length);
    if (wants_statistics) {
      count_chunk(x + begin, scale, codes + begin, length, saturated, underflow);
    }
  }
  if (wants_amax) {
    *amax_out = max_magnitude(value_of_magnitude(largest, TypeTag<X>{}), *amax_out);
  }
  if (wants_statistics) {
    *statistics = {static_cast<uint64_t>(count), saturated, underflow};
  }
}

void transpose_codes(const uint8_t* from, int64_t rows, int64_t columns, uint8_t* to) {
  constexpr int64_t kTile = 64;
  const int64_t column_tiles = chunks_of(columns, kTile);
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
  for (int64_t tile = 0; tile < column_tiles; ++tile) {
    const int64_t column_end = minimum(columns, (tile + 1) * kTile);
    for (int64_t row_begin = 0; row_begin < rows; row_begin += kTile) {
      const int64_t row_end = minimum(rows, row_begin + kTile);
      for (int64_t column = tile * kTile; column < column_end; ++column) {
        for (int64_t row = row_begin; row < row_end; ++row) {
          to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  }
}

void quantize(Stream /*stream*/, ConstView x, const QuantizedView& out, float* amax_out,
              QuantizeStatistics* statistics) {
  const float scale = *out.scale;
  if (out.scale_inv != nullptr) {
    *out.scale_inv = reciprocal(scale);
  }
  with_float_type(x.dtype, [&](auto x_tag) {
    with_fp8_type(out.codes.dtype, [&](auto code_tag) {
      quantize_array(x.as<typename decltype(x_tag)::Type>(),
                     out.codes.as<typename decltype(code_tag)::Type>(), x.count(), scale, amax_out,
                     statistics);
    });
  });
  if (!out.codes_transposed.empty()) {
    transpose_codes(out.codes.as<uint8_t>(), out.codes.shape.rows(), out.codes.shape.back(),
                    out.codes_transposed.as<uint8_t>());
  }
}

void dequantize(Stream /*stream*/, const QuantizedView& x, View y) {
  const float scale_inv = *x.scale_inv;
  with_fp8_type(x.codes.dtype, [&](auto code_tag) {
    with_float_type(y.dtype, [&](auto y_tag) {
      const auto* codes = x.codes.as<typename decltype(code_tag)::Type>();
      auto* data = y.as<typename decltype(y_tag)::Type>();
      for_each_chunk(y.count(), [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) {
          store_from_float(data + i, decode(codes[i]) * scale_inv);
        }
      });
    });
  });
}

void compute_current_scale(Stream /*stream*/, const float* amax, const TensorFormat& format,
                           float* scale, float* scale_inv) {
  *scale = current_scale(*amax, format_max(format.dtype), 0.0F,
                         format.scale_type == ScaleType::pow2, kMaxF32);
  *scale_inv = reciprocal(*scale);
}

void propagate_non_finite(Stream /*stream*/, ConstView amax, double* accumulator) {
  const float* values = amax.as<float>();
  for (int64_t i = 0; i < amax.count(); ++i) {
    if (!is_finite(values[i])) {
      *accumulator = __builtin_nan("");
    }
  }
}

/// Slots begin .. begin + count, at most kLanes: a row of the history is read for all of them.
FP8TRAIN_HD void update_slots(const DelayedScalingState& state, const DelayedScaling& rule,
                              int64_t begin, int64_t count) {
  float window[kLanes];
  bool pushed[kLanes];
  for (int64_t i = 0; i < count; ++i) {
    window[i] = state.amax[begin + i];
    pushed[i] = push_amax(state, begin + i);
  }
  if (rule.algorithm == AmaxAlgorithm::max) {
    for (int64_t row = 0; row < state.history_length; ++row) {
      const float* values = state.history + row * state.slots + begin;
      for (int64_t i = 0; i < count; ++i) {
        window[i] = values[i] > window[i] ? values[i] : window[i];
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (pushed[i]) {
      rescale_slot(state, begin + i, window[i], rule.margin);
    }
  }
}

void update_delayed_scaling(Stream /*stream*/, const DelayedScalingState& state,
                            const DelayedScaling& rule) {
  const int64_t blocks = chunks_of(state.slots, kLanes);
  const int64_t work = state.slots * state.history_length;
#pragma omp parallel for schedule(static) if (work >= kParallelElements)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kLanes;
    update_slots(state, rule, begin, minimum(kLanes, state.slots - begin));
  }
}

}  // namespace

void fill_quantize(OpTable& table) {
  table.amax = amax;
  table.quantize = quantize;
  table.dequantize = dequantize;
  table.compute_current_scale = compute_current_scale;
  table.propagate_non_finite = propagate_non_finite;
  table.update_delayed_scaling = update_delayed_scaling;
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
