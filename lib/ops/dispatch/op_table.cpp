#include "ops/dispatch/op_table.h"

#include "base/error.h"
#include "numeric/cpu_isa.h"
#include "ops/dispatch/cpu_table.h"
#include "ops/dispatch/cuda_table.h"
#include "ops/dispatch/meta_table.h"

namespace fp8train::ops {
namespace {

/// Empty when this build or this machine has not the level: even filling its table takes
/// instructions that a lower machine may lack.
OpTable make_cpu_table(CpuIsa isa) {
  OpTable table{};
  if (isa > cpu_isa()) {
    return table;
  }
  cpu::fill_gemm(table);
  cpu::fill_scaled_gemm(table);
  // One block per level that this build has (FP8TRAIN_CPU_ISAS).
#define FP8TRAIN_FILL_LEVEL(level)           \
  cpu::level::fill_elementwise(table);       \
  cpu::level::fill_quantize(table);          \
  cpu::level::fill_quantize_granules(table); \
  cpu::level::fill_granule_parts(table);     \
  cpu::level::fill_embedding(table);         \
  cpu::level::fill_cross_entropy(table);     \
  cpu::level::fill_optimizer(table);         \
  cpu::level::fill_storage(table);           \
  cpu::level::fill_wire(table);              \
  cpu::level::fill_shared_wire(table);       \
  cpu::level::fill_norm(table);              \
  cpu::level::fill_attention(table);         \
  cpu::level::fill_smoothing(table);         \
  cpu::level::fill_kv_cache(table);          \
  cpu::level::fill_activation(table)
  switch (isa) {
    case CpuIsa::baseline:
#if defined(FP8TRAIN_HAVE_BASELINE)
      FP8TRAIN_FILL_LEVEL(isa_v1);
#endif
      break;
    case CpuIsa::v3:
#if defined(FP8TRAIN_HAVE_V3)
      FP8TRAIN_FILL_LEVEL(isa_v3);
#endif
      break;
    case CpuIsa::v4:
#if defined(FP8TRAIN_HAVE_V4)
      FP8TRAIN_FILL_LEVEL(isa_v4);
#endif
      break;
  }
#undef FP8TRAIN_FILL_LEVEL
  return table;
}

const OpTable& best_cpu_table() {
  for (int level = static_cast<int>(cpu_isa()); level >= 0; --level) {
    if (const OpTable* table = cpu::table_of(static_cast<CpuIsa>(level))) {
      return *table;
    }
  }
  throw_no_kernels_for(cpu_isa());
}

}  // namespace

const OpTable* cpu::table_of(CpuIsa isa) {
  static const OpTable tables[] = {make_cpu_table(CpuIsa::baseline), make_cpu_table(CpuIsa::v3),
                                   make_cpu_table(CpuIsa::v4)};
  const OpTable& table = tables[static_cast<size_t>(isa)];
  return table.cast != nullptr ? &table : nullptr;
}

const OpTable& op_table(const Stream& stream) {
  switch (stream.kind()) {
    case DeviceKind::cpu: {
      static const OpTable& table = best_cpu_table();
      return table;
    }
    case DeviceKind::meta:
      return meta::table();
    case DeviceKind::cuda:
      return cuda::table();
  }
  throw InternalError("unknown device kind");
}

}  // namespace fp8train::ops
