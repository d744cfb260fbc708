#include "ops/dispatch/op_table.h"

#include "base/error.h"
#include "numeric/isa_tables.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/dispatch/meta_operations.h"

namespace fp8train::ops {
namespace cpu {

FP8TRAIN_ISA_TABLES(OpTable, op_table)

const OpTable* table_of(CpuIsa isa) {
  return isa <= cpu_isa() ? op_table_tables().at(isa) : nullptr;
}

}  // namespace cpu

namespace {

constexpr OpTable kMetaTable = {
#define FP8TRAIN_OPERATION(name) .name = &(meta::name),
#include "ops/dispatch/operations.def"
};

}  // namespace

const OpTable& op_table(const Stream& stream) {
  switch (stream.kind()) {
    case DeviceKind::cpu: {
      static const OpTable& table = best_of(cpu::op_table_tables());
      return table;
    }
    case DeviceKind::meta:
      return kMetaTable;
    case DeviceKind::cuda:
      return cuda::table();
  }
  throw InternalError("unknown device kind");
}

}  // namespace fp8train::ops
