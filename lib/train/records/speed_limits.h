#pragma once
// The rate of a run's device, and the time that a step would take at it, with which the speed of
// the run is compared. A GPU that is known (device/gpu_kinds.h) has stated rates; those of a CPU
// are measured while the run trains; of another GPU nothing is known.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "device/device.h"
#include "device/gpu_kinds.h"
#include "engine/engine.h"
#include "engine/gemm_rate.h"

namespace fp8train {

class SpeedLimits {
 public:
  /// `traits` and `kind`: of this rank's device, one of `ranks`. `gpu`: the GPU that it is, or
  /// null.
  SpeedLimits(DeviceKind kind, const DeviceTraits& traits, const GpuKind* gpu,
              const Topology& ranks);

  /// Measures the rate of a CPU with products of `dtype`: three of a size or two at the first call,
  /// then one if the time of all is below a hundredth of `seconds`, those of steps since the last
  /// call, and up to eight more, 64 in all, while the rate is below `achieved`, which steps have
  /// reached.
  /// All ranks call it at the same time, as they share processors when they train. Where there is
  /// no memory for the operands the rate stays unknown.
  void measure(DType dtype, double seconds, double achieved = 0);
  /// Returns the FLOPs per second of 16-bit products that the maker of the GPU states, or those
  /// of the fastest one that was measured on the CPU, in the type of measure(). Nothing: not known.
  std::optional<double> flops_per_second() const;

  /// Returns the seconds that a step of an engine with these settings would take, one with scales
  /// and after the warm-up of capacities: on a GPU those of step_time() for all ranks, on a CPU
  /// those of its GEMMs and of attention at the measured rate, of the pipeline stage for which they
  /// are longest with the share `idle` that its schedule leaves it idle (empty: none). Nothing: not
  /// known. Makes dry runs when the plan has changed.
  std::optional<double> step_seconds(const EngineSettings& settings,
                                     const std::vector<double>& idle);
  /// Makes the dry runs of step_seconds() if they are not made yet for this plan.
  void predict(const EngineSettings& settings);

 private:
  DeviceTraits traits_;
  Topology ranks_;
  const GpuKind* gpu_;           // null: a CPU, or a GPU that is not known
  std::unique_ptr<Device> cpu_;  // of the products, whose memory is not the run's; null on a GPU
  std::unique_ptr<GemmRate> rate_;
  double seconds_ = 0;
  int more_samples_ = 0;             ///< because steps were faster than the rate
  std::string plan_;                 ///< of the prediction; empty: there is none yet
  double predicted_ = 0;             ///< on a GPU
  std::vector<double> stage_flops_;  ///< on a CPU
};

}  // namespace fp8train
