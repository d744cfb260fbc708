#include "train/records/environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "base/machine.h"
#include "numeric/cpu_isa.h"

namespace fp8train {
namespace {

JsonObject describe_processor(const Machine& machine) {
  JsonObject processor;
  processor.add("model", std::string_view(machine.processor))
      .add("isa", name_of(cpu_isa()))
      .add("cores", machine.cores)
      .add("usable_cores", machine.usable_cores);
  if (machine.quota_cores > 0) {
    processor.add("quota_cores", machine.quota_cores);
  }
  return processor;
}

JsonObject describe_libraries() {
  JsonObject libraries;
  for (const std::string& file : loaded_libraries()) {
    libraries.add(std::filesystem::path(file).filename().string(), std::string_view(file));
  }
  return libraries;
}

/// Empty outside of Slurm.
JsonObject describe_slurm() {
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {"job", "SLURM_JOB_ID"},
      {"name", "SLURM_JOB_NAME"},
      {"partition", "SLURM_JOB_PARTITION"},
      {"nodes", "SLURM_JOB_NODELIST"},
      {"restart", "SLURM_RESTART_COUNT"}};
  JsonObject slurm;
  for (const auto& [key, variable] : kVariables) {
    if (const char* value = std::getenv(variable)) {
      slurm.add(key, value);
    }
  }
  return slurm;
}

}  // namespace

std::string utc_time() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

JsonObject describe_environment(const std::string& version, const std::string& command, int ranks,
                                int64_t threads, const Device& device) {
  const Machine machine = this_machine();
  JsonObject all;
  all.add("date", std::string_view(utc_time()))
      .add("host", std::string_view(machine.host))
      .add("system", std::string_view(machine.system))
      .add("version", std::string_view(version))
      .add("command", std::string_view(command))
      .add("ranks", ranks)
      .add("threads", threads)
      .add("device", device.description())
      .add("processor", describe_processor(machine))
      .add("memory_bytes", machine.memory_bytes);
  if (!machine.nvidia_driver.empty()) {
    all.add("nvidia_driver", std::string_view(machine.nvidia_driver));
  }
  if (const JsonObject slurm = describe_slurm(); slurm.str() != "{}") {
    all.add("slurm", slurm);
  }
  return all.add("libraries", describe_libraries());
}

}  // namespace fp8train
