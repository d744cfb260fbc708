#pragma once
// The linear layers of a model, enumerated once from its shape. Their names, plans and exemptions,
// the layers that a Decoder makes, and counts of parameters and FLOPs follow from it.

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model_config.h"
#include "precision/linear_plan.h"

namespace fp8train {

/// Visits all linear layers in order of execution; the head is last, also if it shares the
/// embedding. `config` is completed.
void for_each_linear(const ModelConfig& config,
                     const std::function<void(const LinearSite&)>& visit);

/// Returns all of them, in this order.
std::vector<LinearSite> linear_sites(const ModelConfig& config);

/// Returns the rows of the embedding and head as stored: the vocabulary, rounded up to a multiple
/// of 16 for each of `parts`.
int64_t padded_vocabulary(const ModelConfig& config, int64_t parts = 1);

}  // namespace fp8train
