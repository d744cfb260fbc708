#pragma once
// What the cpu kernels share: choosing a template by element type, and splitting work over threads
// in pieces that do not depend on the number of threads. Only for files compiled by
// fp8train_isa_sources; everything is inlined into them.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/convert.h"
#include "numeric/dtype.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

/// Elements that one thread works on at a time: they stay in its L1 cache over several loops.
constexpr int64_t kChunk = 4096;
/// Below this many elements, waking the other threads costs more than it saves.
constexpr int64_t kParallelElements = 16384;

/// Sixteen partial sums, at any level: element i of an array belongs to lane i % 16, so that the
/// order of a sum is the same at every x86 level.
constexpr int64_t kLanes = 16;
typedef float FloatLanes __attribute__((vector_size(64)));

template <typename T>
struct TypeTag {
  using Type = T;
};

/// body(TypeTag<T>) with T one of float, bf16 and f16.
template <typename Body>
FP8TRAIN_HD void with_float_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f32:
      return body(TypeTag<float>{});
    case DType::bf16:
      return body(TypeTag<bf16>{});
    case DType::f16:
      return body(TypeTag<f16>{});
    default:
      return;
  }
}

/// body(TypeTag<T>) with T one of e4m3 and e5m2.
template <typename Body>
FP8TRAIN_HD void with_fp8_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::e4m3:
      return body(TypeTag<e4m3>{});
    case DType::e5m2:
      return body(TypeTag<e5m2>{});
    default:
      return;
  }
}

/// body(TypeTag<T>) with T one of e4m3, e5m2 and int8_t.
template <typename Body>
FP8TRAIN_HD void with_code_type(DType dtype, Body body) {
  if (dtype == DType::i8) {
    return body(TypeTag<int8_t>{});
  }
  with_fp8_type(dtype, body);
}

FP8TRAIN_HD int64_t chunks_of(int64_t count, int64_t chunk) {
  return (count + chunk - 1) / chunk;
}

FP8TRAIN_HD int64_t minimum(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// body(begin, end) for consecutive pieces of 0 .. count, over the threads.
template <typename Body>
FP8TRAIN_HD void for_each_chunk(int64_t count, Body body) {
  const int64_t chunks = chunks_of(count, kChunk);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    body(chunk * kChunk, minimum(count, (chunk + 1) * kChunk));
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
