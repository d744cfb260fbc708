#pragma once
// The number of threads of the cpu kernels.

#include <cstdint>

namespace fp8train {

/// Sets and returns the number of threads: `requested` if positive, else OMP_NUM_THREADS, at most
/// 1024, else SLURM_CPUS_PER_TASK (not under mpirun, whose ranks are not Slurm's tasks), else this
/// rank's part of the cores that the process may run on. `sharing`: ranks that may run on them. A
/// build without OpenMP has one thread. Throws DeviceError if the system refuses so many threads,
/// which would end the process within OpenMP, or if a thread's stack is too small for the kernels.
int64_t configure_threads(int64_t requested, int sharing = 1);

}  // namespace fp8train
