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

/// The device that a rank trains on.
struct RankDevice {
  std::unique_ptr<Device> device;
  std::string reason;  ///< why this device was chosen, in the words of choose_device
  std::unique_ptr<Communicator> comm;  ///< null: the ranks' own does
  std::string note;                    ///< how memory of the GPU crosses, if that is to be reported
};

/// Which of the GPUs that this process sees is the rank's: that of its local rank, or the only one
/// (as --gpu-bind leaves it). Throws ConfigError where there are fewer than ranks.
int gpu_of_rank(int local_rank, int local_ranks, int visible);

/// Chooses and opens the device of this rank. Collective. `host` connects all ranks
/// (make_communicator), or has one rank if ranks meet by a file; it outlives the result. Throws
/// ConfigError if the devices of the ranks do not fit each other or the settings.
RankDevice take_device(const Settings& settings, Communicator& host);

}  // namespace fp8train
