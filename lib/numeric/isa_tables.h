#pragma once
// Choice among kernel tables that fp8train_isa_sources (cmake/isa.cmake) compiled for several
// x86-64 levels. Only for the .cpp files that dispatch; the tables are static data, nothing is
// owned. In namespace fp8train,
//
//   FP8TRAIN_ISA_TABLES(BulkKernels, bulk_kernels)
//
// declares `const BulkKernels& bulk_kernels()` of every level built and defines
// `IsaTables<BulkKernels> bulk_kernels_tables()`.

#include "numeric/cpu_isa.h"

namespace fp8train {

/// One table per level; null where this build has none.
template <typename Table>
struct IsaTables {
  const Table* level[3];

  const Table* at(CpuIsa isa) const { return level[static_cast<int>(isa)]; }
};

/// The table of the highest level that was built and that `machine` runs. Throws ConfigError when
/// there is none.
template <typename Table>
const Table& best_of(IsaTables<Table> tables, CpuIsa machine = cpu_isa()) {
  for (const CpuIsa isa : {CpuIsa::v4, CpuIsa::v3, CpuIsa::baseline}) {
    if (isa <= machine && tables.at(isa) != nullptr) {
      return *tables.at(isa);
    }
  }
  throw_no_kernels_for(machine);
}

}  // namespace fp8train

#ifdef FP8TRAIN_HAVE_BASELINE
#define FP8TRAIN_DECLARE_V1(Table, name) \
  namespace isa_v1 {                     \
  const Table& name();                   \
  }
#define FP8TRAIN_ADDRESS_V1(name) &isa_v1::name()
#else
#define FP8TRAIN_DECLARE_V1(Table, name)
#define FP8TRAIN_ADDRESS_V1(name) nullptr
#endif
#ifdef FP8TRAIN_HAVE_V3
#define FP8TRAIN_DECLARE_V3(Table, name) \
  namespace isa_v3 {                     \
  const Table& name();                   \
  }
#define FP8TRAIN_ADDRESS_V3(name) &isa_v3::name()
#else
#define FP8TRAIN_DECLARE_V3(Table, name)
#define FP8TRAIN_ADDRESS_V3(name) nullptr
#endif
#ifdef FP8TRAIN_HAVE_V4
#define FP8TRAIN_DECLARE_V4(Table, name) \
  namespace isa_v4 {                     \
  const Table& name();                   \
  }
#define FP8TRAIN_ADDRESS_V4(name) &isa_v4::name()
#else
#define FP8TRAIN_DECLARE_V4(Table, name)
#define FP8TRAIN_ADDRESS_V4(name) nullptr
#endif

#define FP8TRAIN_ISA_TABLES(Table, name)                                                        \
  FP8TRAIN_DECLARE_V1(Table, name)                                                              \
  FP8TRAIN_DECLARE_V3(Table, name)                                                              \
  FP8TRAIN_DECLARE_V4(Table, name)                                                              \
  static IsaTables<Table> name##_tables() {                                                     \
    return {{FP8TRAIN_ADDRESS_V1(name), FP8TRAIN_ADDRESS_V3(name), FP8TRAIN_ADDRESS_V4(name)}}; \
  }
