#pragma once
// Describes this machine: names, cores, memory and limits, as the system states them.

#include <cstdint>
#include <string>
#include <vector>

namespace fp8train {

/// The processor cores and the memory of this machine.
struct Machine {
  std::string host;
  std::string system;            ///< "Linux 6.1.0-13-amd64"
  std::string processor;         ///< processor_name()
  int64_t cores = 0;             ///< cores of the machine, hyperthreads counted
  int64_t usable_cores = 0;      ///< cores that the process may run on (taskset, Slurm, cpuset)
  double quota_cores = 0;        ///< cores that its control groups (version 2) allow; 0: no limit
  uint64_t memory_bytes = 0;     ///< memory of the machine
  uint64_t available_bytes = 0;  ///< without swapping
  uint64_t memory_limit = 0;     ///< limit of its control groups; 0: no limit
  std::string nvidia_driver;     ///< "535.104.05"; empty: none
};

/// "AMD EPYC 7B13"; on Arm, whose kernel knows no names, "Arm processor, implementer 0x41, part
/// 0xd4f"; empty: not known.
std::string processor_name();

/// Reads the facts from the system. What cannot be read is empty or 0.
Machine this_machine();

/// Returns the bytes of memory that the process may still use: what the system has available, its
/// control groups' limit and `ulimit -v`, the least of them.
uint64_t available_memory();

/// Files of the shared libraries that the process has opened so far, sorted.
std::vector<std::string> loaded_libraries();

/// Whether there is an NVIDIA GPU or a driver for one, which may not be usable.
bool has_nvidia_gpu();

}  // namespace fp8train
