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
#include "ops/support/kernel_instructions.h"
#include "train/step/engine.h"

namespace fp8train {

/// The resource that limits the time of an operation.
enum class Bound : uint8_t { memory, flops, instructions, launches };

const char* name_of(Bound bound);

/// The seconds of an operation and its bound.
struct OpTime {
  double seconds = 0;
  Bound bound = Bound::memory;
};

/// Returns the warp instructions for each element of a kernel, by OpWork::kernel, or 0 if they are
/// not known.
using InstructionsPerElement = double (*)(std::string_view kernel);

/// Returns the time of one operation on `gpu`: that of its slowest resource, and of its launches.
OpTime roofline(const OpWork& work, const GpuKind& gpu,
                InstructionsPerElement instructions = ops::meta::instructions_per_element);

/// All calls of one operation in one part of a step.
struct OpTotal {
  std::string part, name;
  int64_t calls = 0, launches = 0;
  double bytes = 0, flops = 0, seconds = 0;
  double longest = 0;           ///< seconds of the longest call
  Bound bound = Bound::memory;  ///< the bound of that call

  void add(const OpTotal& other);
  bool is_product() const { return flops > 0; }
};

/// The modelled time of one optimizer step. Its parts are start (learning rate, zeros), forward,
/// head, backward, rest (of micro-batches: their tokens, scales), update.
struct StepModel {
  std::vector<OpTotal> operations;  ///< by part, in the order of first calls
  OpTotal step;                     ///< their sum
  OpTotal micro_batch;              ///< one of them, on average
  /// Of forward and backward without GEMMs, attention and embedding, for each layer.
  OpTotal layer;

  double seconds_of(const std::string& part) const;
};

/// What layers of a run on this GPU see of it.
DeviceTraits traits_of(const GpuKind& gpu);

/// A step without statistics, long after the first window of delayed scales, of one rank.
OpLog log_step(const EngineSettings& settings, const DeviceTraits& traits);

/// Runs a step on the meta device and models the time of its operations on `gpu`.
StepModel model_step(const EngineSettings& settings, const GpuKind& gpu,
                     InstructionsPerElement instructions = ops::meta::instructions_per_element);

}  // namespace fp8train
