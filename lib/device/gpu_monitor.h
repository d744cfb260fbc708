#pragma once
// Power, clock and temperature of NVIDIA GPUs, as libnvidia-ml.so.1 of the driver reports them. The
// library is opened while the program runs; its functions are declared here, so that no header of
// NVIDIA's is needed, and every build has them.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/not_copied.h"

namespace fp8train {

/// The state of a GPU. Values that the library does not report are absent.
struct GpuState {
  std::string name;
  std::optional<double> watts;      ///< on most GPUs the mean of the last second
  std::optional<double> clock_mhz;  ///< of the multiprocessors
  std::optional<double> celsius;
  /// Reasons for a lower clock: "power", "heat", "power brake", "hardware", "sync boost". Idleness
  /// and clocks that were set by hand are left out.
  std::vector<std::string> throttled_by;

  /// Returns "NVIDIA H200, 76 W, 345 MHz, 31 °C, slowed down by power".
  std::string text() const;
};

/// The management library of the driver. Not thread-safe.
class GpuMonitor : NotCopied {
 public:
  /// Opens the libraries; without them nothing is known. The names are others in tests.
  explicit GpuMonitor(const char* management = "libnvidia-ml.so.1",
                      const char* driver = "libcuda.so.1");
  ~GpuMonitor();

  /// Returns the states of all GPUs of the machine.
  std::vector<GpuState> all() const;
  /// Returns the state of the GPU on which the calling thread computes, if there is one. Of a GPU
  /// that is divided (MIG), that of the whole.
  std::optional<GpuState> current() const;

 private:
  void* find(const char* name) const;
  GpuState state_of(void* gpu) const;

  void* management_;  // null: absent
  void* driver_;
};

}  // namespace fp8train
