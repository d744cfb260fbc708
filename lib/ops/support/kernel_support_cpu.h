#pragma once
// Code that the cpu kernels share: sums over sixteen lanes, and splitting work over threads in
// pieces that do not depend on the number of threads. Only for files compiled by
// fp8train_isa_sources; everything is inlined into them.

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "base/math.h"
#include "numeric/convert.h"
#include "numeric/dtype.h"
#include "numeric/with_type.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

/// Elements that one thread works on at a time: they stay in its L1 cache over several loops.
constexpr int64_t kChunk = 4096;
/// Below this many elements, waking the other threads costs more than it saves.
constexpr int64_t kParallelElements = 16384;

/// Sixteen partial sums, at any level: element i of an array belongs to lane i % 16, so that the
/// order of a sum is the same at every x86 level.
constexpr int64_t kLanes = 16;
typedef float FloatLanes __attribute__((vector_size(64)));

/// Elements 0 .. 15 from `from` on. In vectors, since compilers do not find them reliably.
template <typename T>
FP8TRAIN_HD FloatLanes load_lanes(const T* from) {
  FloatLanes lanes;
  if constexpr (std::is_same_v<T, float>) {
    __builtin_memcpy(&lanes, from, sizeof(lanes));
  } else if constexpr (std::is_same_v<T, bf16>) {
    typedef uint16_t Codes __attribute__((vector_size(32)));
    typedef uint32_t Bits __attribute__((vector_size(64)));
    Codes codes;
    __builtin_memcpy(&codes, from, sizeof(codes));
    lanes = (FloatLanes)(__builtin_convertvector(codes, Bits) << 16);
  } else {
    float values[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      values[i] = load_as_float(from + i);
    }
    __builtin_memcpy(&lanes, values, sizeof(lanes));
  }
  return lanes;
}

/// The lanes folded in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
FP8TRAIN_HD float folded(const FloatLanes& lanes) {
  const auto eight = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                    __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/// Sum over i of term(i), i = 0 .. n - 1: lane i % 16 adds its terms in order, then the lanes are
/// folded. `term` computes with at(pointer), which is element i as a float, or sixteen of them.
template <typename Term>
FP8TRAIN_HD float lane_sum(int64_t n, Term term) {
  const int64_t whole = n - n % kLanes;
  FloatLanes sums = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    sums += term([i](const auto* from) { return load_lanes(from + i); });
  }
  for (int64_t i = whole; i < n; ++i) {
    sums[i - whole] += term([i](const auto* from) { return load_as_float(from + i); });
  }
  return folded(sums);
}

FP8TRAIN_HD int64_t minimum(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// body(begin, end) for consecutive pieces of kSize elements of 0 .. count, over the threads.
template <int64_t kSize = kChunk, typename Body>
FP8TRAIN_HD void for_each_chunk(int64_t count, Body body) {
  const int64_t chunks = ceil_div(count, kSize);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    body(chunk * kSize, minimum(count, (chunk + 1) * kSize));
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
