#pragma once
// Stored tensors as a reference keeps them: it decodes a code by its bits, looks for the nearest
// one among all there are, and has a scale for each element. Stochastic rounding and expansion take
// the functions for one element (numeric/rounding.h, numeric/codec.h), which have tests
// of their own against exact probabilities and fp64.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <type_traits>

#include "numeric/bits.h"
#include "numeric/codec.h"
#include "numeric/scale.h"
#include "numeric/with_type.h"
#include "ops/op_test_support.h"
#include "ops/storage/storage_math.h"

namespace fp8train::test {

inline float decode_bits(DType dtype, uint32_t bits) {
  float value = float_of(bits);
  with_stored_type(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (!std::is_same_v<T, float>) {
      value = decode(T{static_cast<decltype(T::bits)>(bits)});
    }
  });
  return value;
}

/// Bits of the finite code nearest to `value`, the even one of two. Codes of one sign are ordered.
inline uint32_t nearest_code(DType dtype, float value) {
  if (dtype == DType::f32) {
    return bits_of(value);
  }
  const uint32_t sign = size_of(dtype) == 2 ? 0x8000U : 0x80U;
  const double magnitude = std::fabs(double{value});
  uint32_t low = 0;
  uint32_t high = sign - 1;
  while (!std::isfinite(decode_bits(dtype, high))) {
    --high;
  }
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (decode_bits(dtype, middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - decode_bits(dtype, low);
  const double above = decode_bits(dtype, high) - magnitude;
  const uint32_t nearest = below < above || (below == above && low % 2 == 0) ? low : high;
  return nearest | (std::signbit(value) ? sign : 0);
}

inline uint32_t stochastic_code(DType dtype, float value, uint32_t random) {
  uint32_t code = 0;
  with_stored_type(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (!std::is_same_v<T, float>) {
      code = encode_stochastic<T>(value, random).bits;
    } else {
      FAIL("fp32 is not rounded");
    }
  });
  return code;
}

inline uint32_t bits_at(Array& array, size_t i) {
  switch (size_of(array.dtype())) {
    case 1:
      return array.as<uint8_t>()[i];
    case 2:
      return array.as<uint16_t>()[i];
    default:
      return array.as<uint32_t>()[i];
  }
}
inline void set_bits(Array& array, size_t i, uint32_t bits) {
  switch (size_of(array.dtype())) {
    case 1:
      array.as<uint8_t>()[i] = static_cast<uint8_t>(bits);
      break;
    case 2:
      array.as<uint16_t>()[i] = static_cast<uint16_t>(bits);
      break;
    default:
      array.as<uint32_t>()[i] = bits;
  }
}

/// Scales before the first step: ones, and 0 for the amax next to the scale of a tensor.
inline Array fresh_scales(const TensorFormat& format, int64_t count) {
  const int64_t scales = stored_scales(format, count);
  std::vector<float> ones(static_cast<size_t>(scales), 1.0F);
  if (format.is_scaled() && format.block == per::tensor) {
    ones[1] = 0.0F;
  }
  return Array(DType::f32, {scales}, ones);
}

struct NaiveTensor {
  TensorFormat format;
  std::vector<uint32_t> codes;
  std::vector<ScaleExpansion> scales;

  NaiveTensor(const TensorFormat& how, int64_t count)
      : format(how), codes(static_cast<size_t>(count)), scales(static_cast<size_t>(count)) {}

  bool grouped() const { return format.block.is_group(); }

  float value(size_t i) const {
    if (format.remainder) {
      return float_of(codes[i]);  // of both halves
    }
    const float code = decode_bits(format.dtype, codes[i]);
    return format.expanded ? contract(code, scales[i], 1.0F / scales[i].exponent)
                           : code * (1.0F / scales[i].scale);
  }
  std::vector<float> values() const {
    std::vector<float> all(codes.size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = value(i);
    }
    return all;
  }

  ScaleExpansion new_scale(const std::vector<float>& values, size_t begin, size_t end) const {
    float amax = 0.0F;
    float smallest = kMaxF32;
    for (size_t i = begin; i < end; ++i) {
      const float magnitude = std::fabs(values[i]);
      amax = std::max(amax, magnitude);
      smallest = magnitude > 0.0F ? std::min(smallest, magnitude) : smallest;
    }
    if (format.expanded) {
      return stored_expansion(amax, smallest, scales[begin]);
    }
    if (!std::isfinite(amax)) {
      return scales[begin];
    }
    float scale = amax == 0.0F ? 1.0F : format_max(format.dtype) / amax;
    scale = std::min(scale, kMaxF32);
    if (format.scale_type == ScaleType::pow2) {
      scale = std::exp2(std::floor(std::log2(scale)));
    }
    return {scale, 1.0F, 1.0F};
  }

  /// `draw`: of a stochastic format. Elements that `floor_where` has keep their smallest code.
  void store(const std::vector<float>& values, const ops::RoundingDraw& draw = {},
             const NaiveTensor* floor_where = nullptr) {
    const size_t run = grouped() ? 128 : values.size();
    for (size_t begin = 0; format.is_scaled() && begin < values.size(); begin += run) {
      const size_t end = std::min(values.size(), begin + run);
      const ScaleExpansion scale = new_scale(values, begin, end);
      std::fill(scales.begin() + static_cast<std::ptrdiff_t>(begin),
                scales.begin() + static_cast<std::ptrdiff_t>(end), scale);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (format.remainder) {
        codes[i] = bits_of(values[i]);
        continue;
      }
      const float scaled =
          format.expanded ? expand(values[i], scales[i]) : values[i] * scales[i].scale;
      codes[i] = format.rounding == Rounding::stochastic
                     ? stochastic_code(format.dtype, scaled,
                                       stochastic_bits(draw.seed, draw.step, draw.tensor, i))
                     : nearest_code(format.dtype, scaled);
      const uint32_t sign = size_of(format.dtype) == 2 ? 0x8000U : 0x80U;
      const bool zero = (codes[i] & ~sign) == 0;
      const bool floored = floor_where != nullptr && floor_where->value(i) != 0.0F;
      codes[i] = zero && floored && format.is_scaled() ? 1 : codes[i];
    }
  }

  /// The same in memory, as operations have it.
  void write(Array& code_array, Array& scale_array) const {
    for (size_t i = 0; i < codes.size(); ++i) {
      set_bits(code_array, i, format.remainder ? (codes[i] + 0x8000U) >> 16 : codes[i]);
      if (format.remainder) {
        scale_array.as<uint16_t>()[i] = static_cast<uint16_t>(codes[i]);
      }
    }
    for (size_t i = 0; format.is_scaled() && i < codes.size();
         i += grouped() ? 128 : codes.size()) {
      if (format.expanded) {
        scale_array.as<ScaleExpansion>()[i / 128] = scales[i];
      } else {
        scale_array.as<float>()[i / 128] = scales[i].scale;
      }
    }
  }
  /// Elements whose code or scale is another.
  size_t differences(Array& code_array, Array& scale_array) const {
    size_t wrong = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
      if (format.remainder) {
        const bool upper = bits_at(code_array, i) == (codes[i] + 0x8000U) >> 16;
        const bool lower = scale_array.as<uint16_t>()[i] == (codes[i] & 0xFFFFU);
        wrong += upper && lower ? 0 : 1;
        continue;
      }
      const size_t group = grouped() ? i / 128 : 0;
      ScaleExpansion scale = {};
      if (format.expanded) {
        scale = scale_array.as<ScaleExpansion>()[group];
      } else if (format.is_scaled()) {
        scale.scale = scale_array.as<float>()[group];
      }
      const bool same = scale.scale == scales[i].scale && scale.exponent == scales[i].exponent &&
                        scale.center == scales[i].center;
      wrong += bits_at(code_array, i) != codes[i] || !same ? 1 : 0;
    }
    return wrong;
  }
};

}  // namespace fp8train::test
