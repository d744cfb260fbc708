#include "base/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

namespace fp8train {
namespace {

/// The rest of the first line of `path` that begins with `name`, without blanks and a colon.
std::string value_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find_first_not_of(" \t:", name.size());
    if (line.starts_with(name) && begin != std::string::npos) {
      return line.substr(begin);
    }
  }
  return "";
}

uint64_t kibibytes_in_meminfo(const std::string& name) {
  std::istringstream text(value_in("/proc/meminfo", name));
  uint64_t count = 0;
  text >> count;
  return count << 10;
}

/// Folders of this process's control group (version 2) from its own up to the root.
std::vector<std::string> control_groups() {
  std::string group = value_in("/proc/self/cgroup", "0:");
  std::vector<std::string> folders;
  while (group.size() > 1) {
    folders.push_back("/sys/fs/cgroup" + group);
    group.resize(group.rfind('/'));
  }
  folders.emplace_back("/sys/fs/cgroup");
  return folders;
}

/// The smallest limits of all groups that the process is in.
void add_limits(Machine& machine) {
  for (const std::string& folder : control_groups()) {
    double quota = 0, period = 0;
    if (std::ifstream(folder + "/cpu.max") >> quota >> period && period > 0) {  // "max 100000"
      const double cores = quota / period;
      machine.quota_cores = machine.quota_cores == 0 ? cores : std::min(machine.quota_cores, cores);
    }
    uint64_t bytes = 0;
    if (std::ifstream(folder + "/memory.max") >> bytes && bytes < machine.memory_bytes) {
      machine.memory_limit =
          machine.memory_limit == 0 ? bytes : std::min(machine.memory_limit, bytes);
    }
  }
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Wed ..."
std::string driver_version() {
  std::istringstream words(value_in("/proc/driver/nvidia/version", "NVRM version"));
  for (std::string word; words >> word;) {
    const bool number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (number && word.find('.') != std::string::npos) {
      return word;
    }
  }
  return "";
}

}  // namespace

std::string processor_name() {
  constexpr const char* kInfo = "/proc/cpuinfo";
  const std::string name = value_in(kInfo, "model name");
  const std::string part = value_in(kInfo, "CPU part");
  return part.empty() ? name
                      : fmt::format("Arm processor, implementer {}, part {}",
                                    value_in(kInfo, "CPU implementer"), part);
}

Machine this_machine() {
  Machine machine;
  utsname names = {};
  if (uname(&names) == 0) {
    machine.host = names.nodename;
    machine.system = fmt::format("{} {}", names.sysname, names.release);
  }
  machine.processor = processor_name();
  machine.cores = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t usable;
  CPU_ZERO(&usable);
  machine.usable_cores =
      sched_getaffinity(0, sizeof(usable), &usable) == 0 ? CPU_COUNT(&usable) : machine.cores;
  machine.memory_bytes = kibibytes_in_meminfo("MemTotal");
  machine.available_bytes = kibibytes_in_meminfo("MemAvailable");
  machine.nvidia_driver = driver_version();
  add_limits(machine);
  return machine;
}

uint64_t available_memory() {
  const Machine machine = this_machine();
  uint64_t bytes = machine.available_bytes;
  if (machine.memory_limit > 0) bytes = std::min(bytes, machine.memory_limit);
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0) bytes = std::min<uint64_t>(bytes, limit.rlim_cur);
  return bytes;
}

std::vector<std::string> loaded_libraries() {
  std::set<std::string> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && line.find(".so", path) != std::string::npos) {
      files.insert(line.substr(path));
    }
  }
  return {files.begin(), files.end()};
}

bool has_nvidia_gpu() {
  std::error_code unseen;
  return std::filesystem::exists("/dev/nvidia0", unseen) ||
         std::filesystem::exists("/proc/driver/nvidia/version", unseen);
}

}  // namespace fp8train
