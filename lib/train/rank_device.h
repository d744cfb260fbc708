#pragma once
// A rank's device and, if that is a GPU, the communicator that moves the GPU's memory. Every rank
// takes the GPU of its local rank.

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/launch.h"
#include "config/settings.h"
#include "device/device.h"

namespace fp8train {

struct RankDevice {
  std::unique_ptr<Device> device;
  std::string reason;                  ///< for the device, as choose_device has it
  std::unique_ptr<Communicator> comm;  ///< null: the ranks' own does
  std::string note;                    ///< how memory of the GPU crosses, if that is to be reported
};

/// Which of the GPUs that this process sees is the rank's: that of its local rank, or the only one
/// (as --gpu-bind leaves it). Throws ConfigError where there are fewer than ranks.
int gpu_of_rank(int local_rank, int local_ranks, int visible);

/// Collective. `host`: of all ranks, from make_communicator; alone where they meet by a file.
/// Outlives the result. Throws ConfigError where devices of ranks and settings do not go together.
RankDevice take_device(const Settings& settings, Communicator& host);

}  // namespace fp8train
