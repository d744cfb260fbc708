#pragma once
// Conversions of whole arrays on the CPU, at the best CPU level of the machine; each element has
// the bits that numeric/convert.h defines. One thread, synchronous; `from` and `to` hold `count`
// elements, need no alignment and do not overlap. Split large arrays over threads at any element.
// BulkKernels lists the pairs of types; another pair does not compile.

#include <cstddef>

#include "numeric/bulk_kernels.h"
#include "numeric/cpu_isa.h"

namespace fp8train {

/// The kernels of the machine's best level. Throws ConfigError where this build has none.
const BulkKernels& bulk_kernels();

/// The kernels of one level, or null where this build has none (for tests and benchmarks; the
/// machine must run that level).
const BulkKernels* bulk_kernels_at(CpuIsa isa);

/// to[i] = encode(from[i] * scale), the product rounded to fp32 first. A scale of 1 changes
/// nothing. From fp32 to bf16, fp16 and FP8; from bf16 to FP8.
template <typename From, typename To>
void encode(const From* from, float scale, To* to, size_t count) {
  bulk_kernels().ScaledConversion<From, To>::run(from, scale, to, count);
}

/// to[i] = decode(from[i]): exact. From bf16 and fp16 to fp32; from FP8 and int8 to fp32 and bf16.
template <typename From, typename To>
void decode(const From* from, To* to, size_t count) {
  bulk_kernels().Conversion<From, To>::run(from, to, count);
}

/// to[i] = decode(from[i]) * scale: `scale` is the reciprocal of the one encoded with. From bf16,
/// fp16 and FP8.
template <typename From>
void decode(const From* from, float scale, float* to, size_t count) {
  bulk_kernels().ScaledConversion<From, float>::run(from, scale, to, count);
}

}  // namespace fp8train
