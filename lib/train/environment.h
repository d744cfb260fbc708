#pragma once
// env.json: the machine, libraries and command of a start of a run.

#include <cstdint>
#include <string>

#include "device/device.h"
#include "io/metrics.h"

namespace fp8train {

struct EnvironmentRequest {
  std::string version;  ///< of the program, as --version prints it
  std::string command;  ///< the command line
  int ranks = 1;
  int64_t threads = 1;  ///< of a rank
};

/// Of this process: date, host, processor, memory, GPU, driver, Slurm's job, and the shared
/// libraries that are open now, with their files.
JsonObject describe_environment(const EnvironmentRequest& request, const Device& device);

}  // namespace fp8train
