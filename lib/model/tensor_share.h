#pragma once
// The part of each layer that a rank of the tensor axis has.

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "precision/linear_plan.h"

namespace fp8train {

struct TensorShare {
  int rank = 0, ranks = 1;
  int64_t parts = 1;  ///< StepContext::tensor_parts

  /// Returns into how many equal parts heads, inner width and vocabulary are divided.
  int64_t divisor() const { return ranks * parts; }
};

/// Throws ConfigError, with the nearest value that works, where the parts of a model are not equal
/// or a format does not go with them.
void check_tensor_share(const ModelConfig& config, const std::vector<LinearPlan>& linears,
                        const TensorShare& share);
/// Throws ConfigError where experts of a layer have different formats: ranks with different experts
/// exchange alike.
void check_equal_experts(const std::vector<LinearPlan>& linears);
/// Throws ConfigError unless ranks and parts divide the rows of a micro-batch.
void check_tensor_rows(const TensorShare& share, int64_t rows);

}  // namespace fp8train
