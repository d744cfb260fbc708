#pragma once
// What a run would need on ranks that are not here: memory and bytes on the wire as the program
// itself counts them on the meta device, and a time that follows from stated rates.

#include <cstdint>

#include "device/gpu_kinds.h"
#include "train/dry_run.h"
#include "train/engine.h"

namespace fp8train {

/// Seconds of one optimizer step.
struct StepTime {
  double gemms = 0, attention = 0, memory = 0;
  double wire = 0;     ///< if nothing else went on
  double exposed = 0;  ///< of `wire`, what backward does not hide

  double total() const { return gemms + attention + memory + exposed; }
};

/// The parts of a GPU's stated rates that steps are assumed to reach.
struct AssumedRates {
  double gemm = 0.65, attention = 0.45, memory = 0.8, wire = 0.7;
};

StepTime step_time(const DryRunStep& step, const GpuKind& gpu, const AssumedRates& rates = {});

/// Nothing larger is tried.
constexpr int64_t kMostMicroBatch = int64_t{1} << 16;

/// The largest micro_batch_size up to kMostMicroBatch with which the rank needs at most `bytes`; 0:
/// not even one.
int64_t largest_micro_batch(EngineSettings settings, const DeviceTraits& traits,
                            const Topology& ranks, int rank, size_t bytes);

}  // namespace fp8train
