#pragma once
// Choice among kernel tables that fp8train_isa_sources (cmake/isa.cmake) compiled for several
// levels of processors. Only for the .cpp files that dispatch; the tables are static data, nothing
// is owned. In namespace fp8train,
//
//   FP8TRAIN_ISA_TABLES(BulkKernels, bulk_kernels)
//
// declares `const BulkKernels& bulk_kernels()` of every level and defines
// `IsaTables<BulkKernels> bulk_kernels_tables()`.

#include "numeric/cpu_isa.h"

namespace fp8train {

#define FP8TRAIN_COUNT_LEVEL(...) +1
/// One table per level; null where this build has none.
template <typename Table>
struct IsaTables {
  const Table* level[FP8TRAIN_CPU_LEVELS(FP8TRAIN_COUNT_LEVEL, )];

  const Table* at(CpuIsa isa) const { return level[static_cast<int>(isa)]; }
};
#undef FP8TRAIN_COUNT_LEVEL

/// The table of the highest level that was built and that `machine` runs. Throws ConfigError when
/// there is none.
template <typename Table>
const Table& best_of(IsaTables<Table> tables, CpuIsa machine = cpu_isa()) {
  for (int level = static_cast<int>(machine); level >= 0; --level) {
    if (tables.level[level] != nullptr) {
      return *tables.level[level];
    }
  }
  throw_no_kernels_for(machine);
}

}  // namespace fp8train

// FP8TRAIN_BUILT_<identifier> is 1 for the levels built and 0 for the others (cmake/isa.cmake).
#define FP8TRAIN_IF_1(value) value
#define FP8TRAIN_IF_0(value) nullptr
#define FP8TRAIN_EXPANDED_IF(built, value) FP8TRAIN_IF_##built(value)
#define FP8TRAIN_IF(built, value) FP8TRAIN_EXPANDED_IF(built, value)

#define FP8TRAIN_DECLARE_TABLE(identifier, text, requirement, Table, name) \
  namespace isa_##identifier {                                             \
    const Table& name();                                                   \
  }
#define FP8TRAIN_TABLE_ADDRESS(identifier, text, requirement, Table, name) \
  FP8TRAIN_IF(FP8TRAIN_BUILT_##identifier, &isa_##identifier::name()),

#define FP8TRAIN_ISA_TABLES(Table, name)                                 \
  FP8TRAIN_CPU_LEVELS(FP8TRAIN_DECLARE_TABLE, Table, name)               \
  static IsaTables<Table> name##_tables() {                              \
    return {{FP8TRAIN_CPU_LEVELS(FP8TRAIN_TABLE_ADDRESS, Table, name)}}; \
  }
