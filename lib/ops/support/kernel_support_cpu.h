#pragma once
// Code that the cpu kernels share: choosing a template by element type, and splitting work over
// threads in pieces that do not depend on the number of threads. Only for files compiled by
// fp8train_isa_sources; everything is inlined into them.

#include <cstdint>

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

FP8TRAIN_HD int64_t minimum(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// body(begin, end) for consecutive pieces of 0 .. count, over the threads.
template <typename Body>
FP8TRAIN_HD void for_each_chunk(int64_t count, Body body) {
  const int64_t chunks = ceil_div(count, kChunk);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    body(chunk * kChunk, minimum(count, (chunk + 1) * kChunk));
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
