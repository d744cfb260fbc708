#pragma once
// How many threads the cpu kernels use.

#include <cstdint>

namespace fp8train {

/// Sets and returns the thread count: `requested` if positive, else OMP_NUM_THREADS, else
/// SLURM_CPUS_PER_TASK, else the cores this process may run on.
int64_t configure_threads(int64_t requested);

}  // namespace fp8train
