#pragma once
// A rank's device and, if that is a GPU, the communicator that moves the GPU's memory. Every rank
// takes the GPU of its local rank. Also the number of threads of the cpu kernels.

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/launch.h"
#include "config/settings.h"
#include "device/device.h"

namespace fp8train {

/// The device that a rank trains on.
struct RankDevice {
  std::unique_ptr<Device> device;
  std::string reason;  ///< why this device was chosen, in the words of choose_device
  std::unique_ptr<Communicator> comm;  ///< null: the ranks' own does
  std::string note;                    ///< how memory of the GPU crosses, if that is to be reported
};

/// Returns the index of a rank's GPU among the `visible` ones: its local rank, or 0 if there is one
/// rank or at most one GPU is visible (as --gpu-bind leaves it). Throws ConfigError if several are
/// visible, but none with the index of the local rank.
int gpu_of_rank(int local_rank, int local_ranks, int visible);

/// Chooses and opens the device of this rank. Collective. `host` connects all ranks
/// (make_communicator), or has one rank if ranks meet by a file; it outlives the result. Throws
/// ConfigError if the devices of the ranks do not fit each other or the settings, DeviceError if
/// the device cannot be used, and CommError or TimeoutError if the ranks do not meet.
RankDevice take_device(const Settings& settings, Communicator& host);

/// Sets and returns the number of threads: `requested` if positive, else OMP_NUM_THREADS, at most
/// 1024, else SLURM_CPUS_PER_TASK (not under mpirun, whose ranks are not Slurm's tasks), else this
/// rank's part of the cores that the process may run on. `sharing`: ranks that may run on them. A
/// build without OpenMP has one thread. Starts none: for dry runs, which count the memory of each.
int64_t plan_threads(int64_t requested, int sharing);
/// Does the same for threads that compute. Throws DeviceError if the system refuses so many, which
/// would end the process within OpenMP, or if a thread's stack is too small for the kernels.
int64_t configure_threads(int64_t requested, int sharing = 1);

}  // namespace fp8train
