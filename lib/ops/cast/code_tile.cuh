#pragma once
// How kernels that cast to FP8 read their input, count what happened, and transpose a tile of
// codes. A block of kTileThreads threads holds a tile of 128 x 128 elements in registers: thread t
// has the 8 columns 8 * (t % 16) .. of the 8 rows 8 * (t / 16) .., so that 16 threads read and
// write whole lines of a row, and a thread can transpose its 8 x 8 codes without help. Only for .cu
// files.

#include <cstdint>
#include <type_traits>

#include "numeric/bits.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scaling_math.h"
#include "ops/support/runs.cuh"

namespace fp8train::ops::cuda {

constexpr int kTile = 128;
constexpr int kTileThreads = 256;
constexpr int kVec8 = 8;
constexpr int kTileGroups = kTile / kVec8;     // threads per row, and per column
constexpr int kTileWords = kTile * kTile / 4;  // of shared memory for the codes of a tile

/// Blocks that a multiprocessor is to hold: with 64 KiB and more on their way from memory its
/// latency is hidden.
template <bool Packed, bool Counted, typename X>
constexpr int kTileBlocks = !Packed || Counted ? 1
                            : sizeof(X) == 4   ? 2
                                               : 3;

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

/// What a thread counts for QuantizeStatistics; 32 bits hold what one thread can see.
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

/// Codes of a Vec8; scale_of(column) is the scale of one of its eight elements.
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

/// encode_vec8() to FP8 codes whose type is chosen when the kernel runs; not counted.
template <typename X, typename ScaleOf>
__device__ __forceinline__ CodeWords encode_fp8_vec8(const Vec8<X>& vec, DType code_type,
                                                     ScaleOf scale_of) {
  CodeWords codes;
  with_type_of(Fp8Types{}, code_type, [&](auto tag) {
    CastCounts uncounted;
    codes = encode_vec8<typename decltype(tag)::Type, false>(vec, scale_of, uncounted);
  });
  return codes;
}

/// kSaturation of such codes.
__device__ __forceinline__ float fp8_saturation(DType code_type) {
  float saturation = 0.0F;
  with_type_of(Fp8Types{}, code_type,
               [&](auto tag) { saturation = kSaturation<typename decltype(tag)::Type>; });
  return saturation;
}

/// *amax = max(*amax, value) over the values, not negative, of a whole block. What is there is not
/// negative either.
__device__ __forceinline__ void raise_amax(float* amax, float value, uint32_t* shared) {
  const uint32_t largest = block_reduce<kTileThreads>(bits_of(value), Largest{}, shared);
  if (threadIdx.x == 0) {
    atomicMax(reinterpret_cast<unsigned*>(amax), largest);
  }
}

__device__ __forceinline__ void add_to_statistics(QuantizeStatistics* statistics,
                                                  const CastCounts& cast_counts, uint32_t* shared) {
  const uint32_t saturated = block_reduce<kTileThreads>(cast_counts.saturated, Sum{}, shared);
  const uint32_t underflow = block_reduce<kTileThreads>(cast_counts.underflow, Sum{}, shared);
  if (threadIdx.x == 0) {
    using Counter = unsigned long long;
    atomicAdd(reinterpret_cast<Counter*>(&statistics->saturated), Counter{saturated});
    atomicAdd(reinterpret_cast<Counter*>(&statistics->underflow), Counter{underflow});
  }
}

struct ResetStatistics {
  QuantizeStatistics* statistics;
  uint64_t count;

  template <int N>
  __device__ void run(int64_t /*i*/) const {
    *statistics = {count, 0, 0};
  }
};

/// Host: starts a new count of `count` elements.
inline void reset_statistics(const Stream& stream, QuantizeStatistics* statistics, int64_t count) {
  map<1>(stream, 1, true, ResetStatistics{statistics, static_cast<uint64_t>(count)});
}

/// Bytes j of four words become the bytes of word j.
__device__ __forceinline__ void transpose_4x4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const uint32_t cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

/// Puts the thread's 8 rows of 8 codes into the shared tile [128 columns][128 rows], transposed.
/// Column c keeps its 8-byte unit u at u ^ (c / 8): the 16 threads of a row, which write to columns
/// eight apart, then hit 16 different pairs of banks.
__device__ __forceinline__ void put_transposed(CodeWords (&codes)[kVec8], uint32_t* shared) {
  const int group = static_cast<int>(threadIdx.x) % kTileGroups;
  const int unit = static_cast<int>(threadIdx.x) / kTileGroups ^ group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    transpose_4x4(codes[0].values[half], codes[1].values[half], codes[2].values[half],
                  codes[3].values[half]);
    transpose_4x4(codes[4].values[half], codes[5].values[half], codes[6].values[half],
                  codes[7].values[half]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const CodeWords column = {{codes[j].values[half], codes[4 + j].values[half]}};
      store_pack(shared + (group * kVec8 + half * 4 + j) * (kTile / 4) + unit * 2, column);
    }
  }
}

/// Codes of the thread's rows 4 * quad .. 4 * quad + 3, as put_transposed writes those of eight. So
/// that the two halves of a warp hit different banks, let them have different quads at a time.
__device__ __forceinline__ void put_transposed_quad(CodeWords (&codes)[4], int quad,
                                                    uint32_t* shared) {
  const int group = static_cast<int>(threadIdx.x) % kTileGroups;
  const int unit = static_cast<int>(threadIdx.x) / kTileGroups ^ group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    transpose_4x4(codes[0].values[half], codes[1].values[half], codes[2].values[half],
                  codes[3].values[half]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      shared[(group * kVec8 + half * 4 + j) * (kTile / 4) + unit * 2 + quad] =
          codes[j].values[half];
    }
  }
}

/// Where the shared tile holds the code of a row and a column of the tile.
__device__ __forceinline__ int transposed_byte(int row, int column) {
  return column * kTile + (row / kVec8 ^ column / kVec8) * kVec8 + row % kVec8;
}

/// Writes the shared tile at (row, column) of a matrix [rows, columns] to its transpose
/// [columns, rows]. Aligned: `to` to 16 bytes and rows is a multiple of 16.
__device__ __forceinline__ void write_transposed(const uint32_t* shared, uint8_t* to, int64_t row,
                                                 int64_t column, int64_t rows, int64_t columns,
                                                 bool aligned) {
  constexpr int kChunk = 16;
  constexpr int kChunks = kTile / kChunk;
  constexpr int kColumns = kTileThreads / kChunks;  // that the threads write at a time
  static_assert(kColumns % (2 * kVec8) == 0);
  const auto thread = static_cast<unsigned>(threadIdx.x);
  const auto chunk = static_cast<int>(thread % kChunks);
  auto at = static_cast<int>(thread / kChunks);
  const int64_t first = row + chunk * kChunk;
  const int present = first + kChunk <= rows ? kChunk : static_cast<int>(rows - first);
  const int last = column + kTile <= columns ? kTile : static_cast<int>(columns - column);
  // Reads of 16 bytes: an odd group has the two units of a chunk swapped.
  const bool swapped = at / kVec8 % 2 != 0;
  uint8_t* begin = to + (column + at) * rows + first;
#pragma unroll 1
  for (; at < last && present > 0; at += kColumns, begin += rows * kColumns) {
    if (aligned) {
      const Words words = load_pack<4>(shared + at * (kTile / 4) + (chunk ^ at / (2 * kVec8)) * 4);
      const Words ordered = {{words.values[swapped ? 2 : 0], words.values[swapped ? 3 : 1],
                              words.values[swapped ? 0 : 2], words.values[swapped ? 1 : 3]}};
      store_pack(reinterpret_cast<uint32_t*>(begin), ordered);
      continue;
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(shared);
#pragma unroll 1
    for (int j = 0; j < present; ++j) {
      begin[j] = bytes[transposed_byte(chunk * kChunk + j, at)];
    }
  }
}

/// Host: whether write_transposed may store 16 bytes at once.
inline bool transposed_is_aligned(const void* to, int64_t rows) {
  return is_aligned(to) && rows % 16 == 0;
}

}  // namespace fp8train::ops::cuda
