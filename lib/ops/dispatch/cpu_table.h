#pragma once
// How the cpu backend's table is put together. Every kernel file is compiled once per x86-64 level
// (fp8train_isa_sources) and each level fills the entries of its file; the GEMMs are compiled once,
// because oneDNN chooses its own kernels at run time.

#include "numeric/cpu_isa.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops::cpu {

/// The table of one level; null when this build or this machine has not that level.
const OpTable* table_of(CpuIsa isa);

void fill_gemm(OpTable& table);
void fill_scaled_gemm(OpTable& table);

namespace isa_v1 {  // x86-64: SSE2
void fill_elementwise(OpTable& table);
void fill_quantize(OpTable& table);
void fill_quantize_granules(OpTable& table);
void fill_granule_parts(OpTable& table);
void fill_embedding(OpTable& table);
void fill_cross_entropy(OpTable& table);
void fill_optimizer(OpTable& table);
void fill_storage(OpTable& table);
void fill_wire(OpTable& table);
void fill_shared_wire(OpTable& table);
void fill_norm(OpTable& table);
void fill_attention(OpTable& table);
void fill_activation(OpTable& table);
void fill_smoothing(OpTable& table);
void fill_kv_cache(OpTable& table);
}  // namespace isa_v1

namespace isa_v3 {  // x86-64-v3: AVX2, FMA, F16C
void fill_elementwise(OpTable& table);
void fill_quantize(OpTable& table);
void fill_quantize_granules(OpTable& table);
void fill_granule_parts(OpTable& table);
void fill_embedding(OpTable& table);
void fill_cross_entropy(OpTable& table);
void fill_optimizer(OpTable& table);
void fill_storage(OpTable& table);
void fill_wire(OpTable& table);
void fill_shared_wire(OpTable& table);
void fill_norm(OpTable& table);
void fill_attention(OpTable& table);
void fill_activation(OpTable& table);
void fill_smoothing(OpTable& table);
void fill_kv_cache(OpTable& table);
}  // namespace isa_v3

namespace isa_v4 {  // x86-64-v4: AVX-512 F/BW/CD/DQ/VL
void fill_elementwise(OpTable& table);
void fill_quantize(OpTable& table);
void fill_quantize_granules(OpTable& table);
void fill_granule_parts(OpTable& table);
void fill_embedding(OpTable& table);
void fill_cross_entropy(OpTable& table);
void fill_optimizer(OpTable& table);
void fill_storage(OpTable& table);
void fill_wire(OpTable& table);
void fill_shared_wire(OpTable& table);
void fill_norm(OpTable& table);
void fill_attention(OpTable& table);
void fill_activation(OpTable& table);
void fill_smoothing(OpTable& table);
void fill_kv_cache(OpTable& table);
}  // namespace isa_v4

}  // namespace fp8train::ops::cpu
