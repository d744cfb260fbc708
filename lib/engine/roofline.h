#pragma once
// A model of the time of a training step on a GPU, which the machine need not have: every operation
// that the step calls, as the meta device counts it, at the rates of the GPU. The time of an
// operation is the longest of the times for its bytes, its FLOPs and its instructions, plus the
// time of its launches. `estimate` and `bench step` both use it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/gpu_kinds.h"
#include "device/meta/op_log.h"
#include "engine/engine.h"
#include "engine/measured_products.h"
#include "model/step_part.h"
#include "ops/support/kernel_instructions.h"

namespace fp8train {

/// The resource that limits the time of an operation.
enum class Bound : uint8_t { memory, flops, instructions, launches };

/// Returns "memory", "flops", "instructions" or "launches".
const char* name_of(Bound bound);

/// The seconds of an operation, its bound, and for a product the source of its rate.
struct OpTime {
  double seconds = 0;
  Bound bound = Bound::memory;
  RateSource source = RateSource::assumed;
};

/// Returns the warp instructions for each element of a kernel, by OpWork::kernel, or 0 if they are
/// not known.
using InstructionsPerElement = double (*)(std::string_view kernel);

/// The rates at which a GPU works.
struct StepRates {
  explicit StepRates(const GpuKind& kind) : gpu(&kind), shares(achieved_shares(kind)) {}

  const GpuKind* gpu;              ///< never null
  AchievedShares shares;           ///< of its stated rates
  MeasuredProducts measured = {};  ///< come before the shares of products
  /// If it is null, instructions do not count.
  InstructionsPerElement instructions = ops::meta::instructions_per_element;
};

/// Returns the time of one operation: the time of its slowest resource plus the time of its
/// launches. The measured time of a product of its own shape includes its bytes.
OpTime roofline(const OpWork& work, const StepRates& rates);

/// All calls of one operation in one part of a step.
struct OpTotal {
  StepPart part = StepPart::rest;
  std::string name;
  int64_t calls = 0, launches = 0;
  double bytes = 0, flops = 0, seconds = 0;
  Arithmetic arithmetic = Arithmetic::none;  ///< of the first call
  double longest = 0;                        ///< seconds of the longest call
  Bound bound = Bound::memory;               ///< the bound of that call

  /// Adds the sums of `other`, and keeps the longer of the two longest calls.
  void add(const OpTotal& other);
  /// Whether it is a GEMM or attention.
  bool is_product() const { return flops > 0; }
  bool is_attention() const { return arithmetic >= Arithmetic::attention_forward; }
};

/// The modelled time of one optimizer step.
struct StepModel {
  std::vector<OpTotal> operations;  ///< by part, in the order of first calls
  OpTotal step;                     ///< their sum
  OpTotal micro_batch;              ///< operations of one micro-batch, on average
  /// Operations of one layer, on average, in the forward and backward pass of a micro-batch,
  /// without GEMMs, attention and embedding.
  OpTotal layer;
  /// Calls of GEMMs by the source of their rate (RateSource).
  std::array<int64_t, 3> gemms_by_source = {};

  /// Returns the seconds of a part.
  double seconds_of(StepPart part) const;
};

/// Returns the traits that layers of a run on this GPU would see.
DeviceTraits traits_of(const GpuKind& gpu);

/// Models the time of the operations of a step, DryRunStep::calls of an engine with these settings.
/// `calls`: their parts are StepParts; throws InternalError for others.
StepModel model_step(const OpLog& calls, const EngineSettings& settings, const StepRates& rates);

}  // namespace fp8train
