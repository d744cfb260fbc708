#pragma once
// Eight elements of a thread at a time: how kernels read and write them, find their amax, encode
// and decode FP8, and count what happened. Only for .cu files.

#include <cstdint>
#include <type_traits>

#include "numeric/bits.h"
#include "ops/cast/scaling_math.h"
#include "ops/support/runs.cuh"

namespace fp8train::ops::cuda {

constexpr int kVec8 = 8;

using CodeWords = Pack<uint32_t, 2>;  ///< eight codes
using Words = Pack<uint32_t, 4>;

/// Stores four words at once. The compiler splits store_pack of words that came from inline PTX
/// into four stores, which cost four times the work of the memory pipeline.
__device__ __forceinline__ void store_words(uint32_t* to, const Words& words) {
#if defined(FP8TRAIN_CUDA_SHIM)
  store_pack(to, words);
#else
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(words.values[0]), "r"(words.values[1]),
                 "r"(words.values[2]), "r"(words.values[3])
               : "memory");
#endif
}

/// Eight consecutive elements, as they lie in memory.
template <typename X>
struct Vec8 {
  static constexpr int kWords = kVec8 * static_cast<int>(sizeof(X)) / 4;
  uint32_t words[kWords];

  /// Elements 2 * i and 2 * i + 1.
  __device__ __forceinline__ void pair(int i, float& low, float& high) const {
    if constexpr (sizeof(X) == 4) {
      low = float_of(words[2 * i]);
      high = float_of(words[2 * i + 1]);
    } else {
      widen(words[i], low, high, TypeTag<X>{});
    }
  }

 private:
  static __device__ __forceinline__ void widen(uint32_t word, float& low, float& high,
                                               TypeTag<bf16> /*tag*/) {
    low = float_of(word << 16);
    high = float_of(word & 0xFFFF0000U);
  }
  static __device__ __forceinline__ void widen(uint32_t word, float& low, float& high,
                                               TypeTag<f16> /*tag*/) {
    widen_f16_pair(word, low, high);
  }
};

/// Elements from `from` on, zeros from `available` (may be negative) on. Packed: `from` is aligned
/// to 16 bytes and `available` is a multiple of eight.
template <bool Packed, typename X>
__device__ __forceinline__ Vec8<X> load_vec8(const X* from, int64_t available) {
  Vec8<X> vec = {};
  if constexpr (Packed) {
    if (available > 0) {
      for (int i = 0; i < Vec8<X>::kWords / 4; ++i) {
        const Words words = load_pack<4>(reinterpret_cast<const uint32_t*>(from) + i * 4);
        for (int j = 0; j < 4; ++j) {
          vec.words[i * 4 + j] = words.values[j];
        }
      }
    }
  } else {
    using Bits = std::conditional_t<sizeof(X) == 4, uint32_t, uint16_t>;
    for (int i = 0; i < kVec8; ++i) {
      if (i < available) {
        const uint32_t bits = __builtin_bit_cast(Bits, from[i]);
        vec.words[i * Vec8<X>::kWords / kVec8] |= sizeof(X) == 4 ? bits : bits << i % 2 * 16;
      }
    }
  }
  return vec;
}

/// Eight values as X, those from `available` on zero.
template <typename X>
__device__ __forceinline__ Vec8<X> vec8_of(const float (&values)[kVec8], int64_t available) {
  Vec8<X> vec;
#pragma unroll
  for (int pair = 0; pair < kVec8 / 2; ++pair) {
    const float low = 2 * pair < available ? values[2 * pair] : 0.0F;
    const float high = 2 * pair + 1 < available ? values[2 * pair + 1] : 0.0F;
    if constexpr (sizeof(X) == 4) {
      vec.words[2 * pair] = bits_of(low);
      vec.words[2 * pair + 1] = bits_of(high);
    } else {
      vec.words[pair] = narrow_pair<X>(low, high);
    }
  }
  return vec;
}

/// The eight elements as fp32.
template <typename X>
__device__ __forceinline__ void vec8_values(const Vec8<X>& vec, float (&values)[kVec8]) {
#pragma unroll
  for (int pair = 0; pair < kVec8 / 2; ++pair) {
    vec.pair(pair, values[2 * pair], values[2 * pair + 1]);
  }
}

/// The first `available` of a Vec8. Packed: as for load_vec8.
template <bool Packed, typename X>
__device__ __forceinline__ void store_vec8(X* to, const Vec8<X>& vec, int64_t available) {
  if constexpr (Packed) {
    if (available > 0) {
#pragma unroll
      for (int i = 0; i < Vec8<X>::kWords / 4; ++i) {
        const uint32_t* from = vec.words + i * 4;
        store_words(reinterpret_cast<uint32_t*>(to) + i * 4,
                    Words{{from[0], from[1], from[2], from[3]}});
      }
    }
  } else {
    using Bits = std::conditional_t<sizeof(X) == 4, uint32_t, uint16_t>;
    for (int i = 0; i < kVec8; ++i) {
      if (i < available) {
        const uint32_t word = vec.words[i * Vec8<X>::kWords / kVec8];
        to[i] =
            __builtin_bit_cast(X, static_cast<Bits>(sizeof(X) == 4 ? word : word >> i % 2 * 16));
      }
    }
  }
}

/// The first `available` of eight codes. Packed: as for load_vec8, to 8 bytes.
template <bool Packed>
__device__ __forceinline__ void store_codes(uint8_t* to, const CodeWords& codes,
                                            int64_t available) {
  if constexpr (Packed) {
    if (available > 0) {
      store_pack(reinterpret_cast<uint32_t*>(to), codes);
    }
  } else {
    for (int i = 0; i < kVec8; ++i) {
      if (i < available) {
        to[i] = static_cast<uint8_t>(codes.values[i / 4] >> i % 4 * 8);
      }
    }
  }
}

/// y = codes * factor for one element, or for eight: then codes are aligned to 8 bytes, y to 16.
template <int N, typename Code, typename Y>
__device__ __forceinline__ void store_decoded(const Code* codes, float factor, Y* y) {
  if constexpr (N == 1) {
    store_from_float(y, decode(*codes) * factor);
  } else {
    static_assert(N == kVec8);
    const CodeWords words = load_pack<2>(reinterpret_cast<const uint32_t*>(codes));
    float values[kVec8];
    for (int i = 0; i < kVec8; i += 2) {
      decode_pair<Code>(words.values[i / 4] >> i % 4 * 8, values[i], values[i + 1]);
      values[i] *= factor;
      values[i + 1] *= factor;
    }
    store_values<kVec8, true>(y, values, kVec8);
  }
}

/// The largest |x| seen, as a bit pattern without sign, which is ordered like the value and has
/// every NaN above infinity. Of 16-bit types it holds the two halves of a word, so that a
/// pair costs two instructions.
template <typename X>
struct AmaxBits {
  uint32_t bits = 0;

  __device__ __forceinline__ void add(const Vec8<X>& vec) {
    constexpr uint32_t kMagnitude = sizeof(X) == 4 ? 0x7FFFFFFFU : 0x7FFF7FFFU;
#pragma unroll
    for (int i = 0; i < Vec8<X>::kWords; ++i) {
      raise(vec.words[i] & kMagnitude);
    }
  }
  __device__ __forceinline__ void raise(uint32_t other) {
    if constexpr (sizeof(X) == 4) {
      bits = other > bits ? other : bits;
    } else {
      bits = __vmaxu2(bits, other);
    }
  }
  /// The magnitude as fp32; every NaN becomes 0x7FC00000.
  __device__ __forceinline__ float value() const {
    float largest;
    if constexpr (sizeof(X) == 4) {
      largest = float_of(bits);
    } else {
      const uint32_t low = bits & 0xFFFFU;
      const uint32_t high = bits >> 16;
      largest = decode(X{static_cast<uint16_t>(low > high ? low : high)});
    }
    return max_magnitude(largest, 0.0F);
  }
};

template <typename Code>
constexpr float kSaturation = saturation_threshold(dtype_of<Code>());

/// The counts of a thread for QuantizeStatistics; 32 bits hold what one thread can see.
struct CastCounts {
  uint32_t saturated = 0;
  uint32_t underflow = 0;

  template <typename Code>
  __device__ __forceinline__ void add(float x, float scaled, uint32_t code) {
    count(x, scaled, kSaturation<Code>, code);
  }
  /// limit: the magnitude above which a scaled value saturates.
  __device__ __forceinline__ void count(float x, float scaled, float limit, uint32_t code) {
    saturated += scaled > limit || scaled < -limit ? 1U : 0U;
    underflow += (bits_of(x) & 0x7FFFFFFFU) != 0 && (code & 0x7FU) == 0 ? 1U : 0U;
  }
};

/// Codes of a Vec8; scale_of(i) is the scale of element i. Counted: adds to cast_counts.
template <typename Code, bool Counted, typename X, typename ScaleOf>
__device__ __forceinline__ CodeWords encode_vec8(const Vec8<X>& vec, ScaleOf scale_of,
                                                 CastCounts& cast_counts) {
  CodeWords codes;
  for (int half = 0; half < 2; ++half) {
    uint32_t word = 0;
    for (int i = 0; i < 2; ++i) {
      const int at = half * 2 + i;
      float low;
      float high;
      vec.pair(at, low, high);
      const float scaled_low = low * scale_of(2 * at);
      const float scaled_high = high * scale_of(2 * at + 1);
      const uint32_t pair = encode_pair<Code>(scaled_low, scaled_high);
      if constexpr (Counted) {
        cast_counts.template add<Code>(low, scaled_low, pair);
        cast_counts.template add<Code>(high, scaled_high, pair >> 8);
      }
      word |= pair << i * 16;
    }
    codes.values[half] = word;
  }
  return codes;
}

/// FP8 codes as above, of a type that is chosen when the kernel runs; adds to cast_counts if
/// `counts`.
template <typename X, typename ScaleOf>
__device__ __forceinline__ CodeWords encode_vec8(const Vec8<X>& vec, DType code_type,
                                                 ScaleOf scale_of, bool counts,
                                                 CastCounts& cast_counts) {
  CodeWords codes;
  float limit = 0.0F;
  with_type_of(Fp8Types{}, code_type, [&]<typename Code>(TypeTag<Code>) {
    CastCounts uncounted;
    codes = encode_vec8<Code, false>(vec, scale_of, uncounted);
    limit = kSaturation<Code>;
  });
  if (counts) {
#pragma unroll
    for (int i = 0; i < kVec8; i += 2) {
      float values[2];
      vec.pair(i / 2, values[0], values[1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t code = codes.values[(i + j) / 4] >> (i + j) % 4 * 8;
        cast_counts.count(values[j], values[j] * scale_of(i + j), limit, code);
      }
    }
  }
  return codes;
}

}  // namespace fp8train::ops::cuda
