// The input is the environment of a process, lines NAME=VALUE, as srun, mpirun or anybody sets it.
// A rank is inside its run or refused; a number is the one that is written there or refused, never
// another one.

#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "base/error.h"
#include "comm/backends/rendezvous.h"
#include "comm/launch.h"
#include "plain_message.h"

namespace {

using Variables = std::map<std::string, std::string>;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// What a person reads: digits only, and no more than an int holds.
std::optional<int> plain_number(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty() ||
      found->second.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  const std::string digits =
      found->second.substr(std::min(found->second.find_first_not_of('0'), found->second.size()));
  if (digits.size() > 12) {
    return std::nullopt;
  }
  const long long value = digits.empty() ? 0 : std::stoll(digits);
  return value > 2147483647 ? std::nullopt : std::optional(static_cast<int>(value));
}

void check_rendezvous(const Variables& variables, const fp8train::Environment& environment) {
  try {
    const fp8train::Rendezvous rendezvous = fp8train::slurm_rendezvous(environment, "/tmp/file", 1);
    check(rendezvous.rank >= 0 && rendezvous.rank < rendezvous.size);
    check(rendezvous.local_rank >= 0 && rendezvous.node >= 0);
    check(plain_number(variables, "SLURM_PROCID") == rendezvous.rank);
    check(plain_number(variables, "SLURM_LOCALID") == rendezvous.local_rank);
    check(plain_number(variables, "SLURM_NODEID") == rendezvous.node);
    const bool in_step = variables.contains("SLURM_STEP_NUM_TASKS");
    check(plain_number(variables, in_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS") ==
          rendezvous.size);
    // The name of a file is made of it.
    check(rendezvous.run.find('/') == std::string::npos);
  } catch (const fp8train::ConfigError& error) {
    require_plain(error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Variables variables;
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos && line.find('\0') == std::string::npos) {
      variables[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  const fp8train::Environment environment = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const fp8train::Launch launch = fp8train::detect_launch(environment);
  check(launch.slurm_step_tasks >= 0 && launch.slurm_job_tasks >= 0 && launch.mpi_ranks >= 0);
  const std::optional<int> ranks = plain_number(variables, "OMPI_COMM_WORLD_SIZE");
  check(!ranks || *ranks == 0 || launch.mpi_ranks == *ranks);
  const std::optional<int> tasks = plain_number(variables, "SLURM_NTASKS");
  check(!tasks || launch.slurm_job_tasks == *tasks);
  for (const int64_t cores : {1, 7}) {
    for (const int sharing : {1, 3}) {
      const int64_t threads = fp8train::threads_per_rank(sharing, cores, launch, environment);
      check(threads >= 1 && threads <= cores);
    }
  }
  for (const int found : {1, 2}) {
    try {
      fp8train::check_launch(launch, found);
    } catch (const fp8train::ConfigError& error) {
      require_plain(error);
      check(found == 1);
    }
  }
  check_rendezvous(variables, environment);
  return 0;
}
