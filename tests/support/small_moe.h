#pragma once
// Small models with experts.

#include <string>

#include "support/small_llama.h"

namespace fp8train::test {

/// Four experts, of which a token has two. Their rows are as many as there are choices, so that
/// some are dropped.
inline EngineSettings small_moe(const std::string& plan, int64_t accumulation = 1) {
  EngineSettings settings = small_llama(plan, accumulation);
  settings.model.moe = {.experts = 4, .per_token = 2, .width = 32};
  settings.step.decoder.moe = {.capacity_factor = 1.0, .balance_loss = 0.01, .z_loss = 0.001};
  return settings;
}

/// The same as DeepSeek-V3 chooses: sigmoids, biases, groups and a shared expert; and a block
/// without experts.
inline EngineSettings small_deepseek(const std::string& plan, int64_t accumulation = 1) {
  EngineSettings settings = small_moe(plan, accumulation);
  settings.model.moe = {.experts = 8,
                        .per_token = 2,
                        .width = 32,
                        .shared_width = 48,
                        .groups = 4,
                        .groups_per_token = 2,
                        .score = RouterScore::sigmoid,
                        .has_bias = true,
                        .scale = 2.5F};
  settings.model.dense_layers = {0};
  settings.step.decoder.moe.bias_rate = 0.01;
  return settings;
}

}  // namespace fp8train::test
