#pragma once
// fp8train bench step --device meta:GPU: a training step on a GPU that is not here, operation by
// operation, from the calls that the step makes and the stated rates of the GPU, against the same
// step in bf16.

#include <string>

#include "bench/parts.h"

namespace fp8train {

/// Whether --device names a GPU to model: "meta:h200".
bool is_modeled_device(const std::string& device);

/// Throws ConfigError for an unknown GPU, preset or plan, a timeline, a ZeRO stage, and a file of
/// measured products that read_calibration() refuses.
nlohmann::ordered_json step_model_report(const BenchOptions& options);

/// Prints the report as tables.
void print_step_model(const nlohmann::ordered_json& report);

}  // namespace fp8train
