#pragma once
// Conversions of whole arrays on the CPU, at the best x86-64 level of the machine; each element has
// the bits that numeric/convert.h defines. One thread, synchronous; `from` and `to` hold `count`
// elements, need no alignment and do not overlap. Split large arrays over threads at any element.

#include <cstddef>
#include <cstdint>

#include "numeric/bulk_kernels.h"
#include "numeric/cpu_isa.h"
#include "numeric/dtype.h"

namespace fp8train {

/// to[i] = encode(from[i] * scale), the product rounded to fp32 first. A scale of 1 changes
/// nothing.
void encode(const float* from, float scale, bf16* to, size_t count);
void encode(const float* from, float scale, f16* to, size_t count);
void encode(const float* from, float scale, e4m3* to, size_t count);
void encode(const float* from, float scale, e5m2* to, size_t count);
void encode(const bf16* from, float scale, e4m3* to, size_t count);
void encode(const bf16* from, float scale, e5m2* to, size_t count);

/// to[i] = decode(from[i]): exact.
void decode(const bf16* from, float* to, size_t count);
void decode(const f16* from, float* to, size_t count);
void decode(const e4m3* from, float* to, size_t count);
void decode(const e5m2* from, float* to, size_t count);
void decode(const e4m3* from, bf16* to, size_t count);
void decode(const e5m2* from, bf16* to, size_t count);
void decode(const int8_t* from, float* to, size_t count);
void decode(const int8_t* from, bf16* to, size_t count);

/// to[i] = decode(from[i]) * scale: `scale` is the reciprocal of the one encoded with.
void decode(const bf16* from, float scale, float* to, size_t count);
void decode(const f16* from, float scale, float* to, size_t count);
void decode(const e4m3* from, float scale, float* to, size_t count);
void decode(const e5m2* from, float scale, float* to, size_t count);

/// The kernels of one level, or null where this build has none (for tests and benchmarks; the
/// machine must run that level).
const BulkKernels* bulk_kernels_at(CpuIsa isa);

}  // namespace fp8train
