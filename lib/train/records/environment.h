#pragma once
// env.json: the machine, libraries and command of a start of a run.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "device/device.h"

namespace fp8train {

/// Returns the time as "2026-01-31T12:00:00Z".
std::string utc_time();

/// Returns a description of this process: date, host, processor, memory, GPU, driver, Slurm's job,
/// and the shared libraries that are open now, with their files. `version` is the program's, as
/// --version prints it, `command` the command line, `threads` those of a rank.
nlohmann::ordered_json describe_environment(const std::string& version, const std::string& command,
                                            int ranks, int64_t threads, const Device& device);

}  // namespace fp8train
