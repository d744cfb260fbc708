#pragma once
// A model of the time of a training step on a GPU, which the machine need not have: every operation
// that the step calls, as the meta device counts it, at the rates of the GPU. The time of an
// operation is the longest of the times for its bytes, its FLOPs and its instructions, plus that of
// its launches.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/gpu_kinds.h"
#include "device/meta/op_log.h"
#include "model/step_part.h"
#include "ops/support/kernel_instructions.h"
#include "train/step/engine.h"

namespace fp8train {

/// The resource that limits the time of an operation.
enum class Bound : uint8_t { memory, flops, instructions, launches };

/// Returns "memory", "flops", "instructions" or "launches".
const char* name_of(Bound bound);

/// The seconds of an operation and its bound.
struct OpTime {
  double seconds = 0;
  Bound bound = Bound::memory;
};

/// Returns the warp instructions for each element of a kernel, by OpWork::kernel, or 0 if they are
/// not known.
using InstructionsPerElement = double (*)(std::string_view kernel);

/// Returns the time of one operation on `gpu`: the time of its slowest resource plus the time of
/// its launches. `instructions` may be null: then they do not count.
OpTime roofline(const OpWork& work, const GpuKind& gpu,
                InstructionsPerElement instructions = ops::meta::instructions_per_element);

/// All calls of one operation in one part of a step.
struct OpTotal {
  StepPart part = StepPart::rest;
  std::string name;
  int64_t calls = 0, launches = 0;
  double bytes = 0, flops = 0, seconds = 0;
  double longest = 0;           ///< seconds of the longest call
  Bound bound = Bound::memory;  ///< the bound of that call

  /// Adds the sums of `other`, and keeps the longer of the two longest calls.
  void add(const OpTotal& other);
  /// Whether it is a GEMM or attention.
  bool is_product() const { return flops > 0; }
};

/// The modelled time of one optimizer step.
struct StepModel {
  std::vector<OpTotal> operations;  ///< by part, in the order of first calls
  OpTotal step;                     ///< their sum
  OpTotal micro_batch;              ///< operations of one micro-batch, on average
  /// Operations of one layer, on average, in the forward and backward pass of a micro-batch,
  /// without GEMMs, attention and embedding.
  OpTotal layer;

  /// Returns the seconds of a part.
  double seconds_of(StepPart part) const;
};

/// Returns the traits that layers of a run on this GPU would see.
DeviceTraits traits_of(const GpuKind& gpu);

/// Returns the operations of a step of one rank on the meta device: a step without statistics, long
/// after the first window of delayed scales.
OpLog log_step(const EngineSettings& settings, const DeviceTraits& traits);

/// Runs a step on the meta device and models the time of its operations on `gpu`.
StepModel model_step(const EngineSettings& settings, const GpuKind& gpu,
                     InstructionsPerElement instructions = ops::meta::instructions_per_element);

}  // namespace fp8train
