// Compiled once per CPU level.

#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr OpTable kTable = {
#define FP8TRAIN_OPERATION(name) .name = &(name),
#include "ops/dispatch/operations.def"
};

}  // namespace

const OpTable& op_table() {
  return kTable;
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
