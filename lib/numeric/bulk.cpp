#include "numeric/bulk.h"

#include "numeric/isa_tables.h"

namespace fp8train {

FP8TRAIN_ISA_TABLES(BulkKernels, bulk_kernels)

const BulkKernels& bulk_kernels() {
  static const BulkKernels& best = best_of(bulk_kernels_tables());
  return best;
}

const BulkKernels* bulk_kernels_at(CpuIsa isa) {
  return bulk_kernels_tables().at(isa);
}

}  // namespace fp8train
