#include "train/records/environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/machine.h"
#include "numeric/cpu_isa.h"

namespace fp8train {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson describe_processor(const Machine& machine) {
  OrderedJson processor = {{"model", machine.processor},
                           {"isa", name_of(cpu_isa())},
                           {"cores", machine.cores},
                           {"usable_cores", machine.usable_cores}};
  if (machine.quota_cores > 0) {
    processor["quota_cores"] = machine.quota_cores;
  }
  return processor;
}

OrderedJson describe_libraries() {
  OrderedJson libraries = OrderedJson::object();
  for (const std::string& file : loaded_libraries()) {
    libraries[std::filesystem::path(file).filename().string()] = file;
  }
  return libraries;
}

/// Empty outside of Slurm.
OrderedJson describe_slurm() {
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {"job", "SLURM_JOB_ID"},
      {"name", "SLURM_JOB_NAME"},
      {"partition", "SLURM_JOB_PARTITION"},
      {"nodes", "SLURM_JOB_NODELIST"},
      {"restart", "SLURM_RESTART_COUNT"}};
  OrderedJson slurm = OrderedJson::object();
  for (const auto& [key, variable] : kVariables) {
    if (const char* value = std::getenv(variable)) {
      slurm[key] = value;
    }
  }
  return slurm;
}

}  // namespace

std::string utc_time() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

nlohmann::ordered_json describe_environment(const std::string& version, const std::string& command,
                                            int ranks, int64_t threads, const Device& device) {
  const Machine machine = this_machine();
  OrderedJson all = {{"date", utc_time()},
                     {"host", machine.host},
                     {"system", machine.system},
                     {"version", version},
                     {"command", command},
                     {"ranks", ranks},
                     {"threads", threads},
                     {"device", device.description()},
                     {"processor", describe_processor(machine)},
                     {"memory_bytes", machine.memory_bytes}};
  if (!machine.nvidia_driver.empty()) {
    all["nvidia_driver"] = machine.nvidia_driver;
  }
  if (OrderedJson slurm = describe_slurm(); !slurm.empty()) {
    all["slurm"] = std::move(slurm);
  }
  all["libraries"] = describe_libraries();
  return all;
}

}  // namespace fp8train
