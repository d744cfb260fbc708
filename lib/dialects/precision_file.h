#pragma once
// The file of plans for layers that Megatron reads with --te-precision-config-file
// (Megatron-LM, megatron/core/quantization/quant_config.py and
// megatron/core/extensions/transformer_engine.py, TEQuantizationParams): named configurations, and
// matchers of which the first enabled one whose pattern matches a layer counts.

#include <string>
#include <vector>

#include "config/yaml/problems.h"
#include "precision/plan.h"

namespace fp8train {

/// Returns the layers of the file's text in the order of PrecisionPlan::layers, of which the last
/// one counts. Everything wrong, and everything that no plan here has, goes to `problems` with
/// `path`.
std::vector<LayerRequest> read_precision_file(const std::string& path, const std::string& text,
                                              Problems& problems);

}  // namespace fp8train
