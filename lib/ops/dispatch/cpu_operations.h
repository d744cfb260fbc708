#pragma once
// The operations of the cpu backend. A file of kernels is compiled once per CPU level
// (fp8train_isa_sources) and defines those of its level; operations of libraries, which choose
// their kernels at run time, are compiled once.

#include "numeric/cpu_isa.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops::cpu {

/// The table of one level; null when this build or this machine has not that level.
const OpTable* table_of(CpuIsa isa);

#define FP8TRAIN_OPERATION(name)
#define FP8TRAIN_LIBRARY_OPERATION(name) decltype(ops::name) name;
#include "ops/dispatch/operations.def"

#if defined(FP8TRAIN_ISA_NS)
namespace FP8TRAIN_ISA_NS {

#define FP8TRAIN_OPERATION(name) decltype(ops::name) name;
#define FP8TRAIN_LIBRARY_OPERATION(name)
#include "ops/dispatch/operations.def"

/// The table of this level: constant data, which takes no instruction of the level to be made.
const OpTable& op_table();

}  // namespace FP8TRAIN_ISA_NS
#endif

}  // namespace fp8train::ops::cpu
