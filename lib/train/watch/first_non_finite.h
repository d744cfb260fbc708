#pragma once
// Finds the first tensor that is not finite, and its rank, after a step was skipped; other steps
// cost nothing. Reads weights and gradients back from the device, and runs the step's micro-batches
// forward once more.

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "engine/engine.h"

namespace fp8train {

/// Returns "rank 1: weight layers.0.mlp.up.weight, element 17 is nan", or "" if all is finite by
/// now. Of a tensor that only its cast has seen it says ", whose largest magnitude is inf" instead
/// of the element. Collective: all ranks get the same text, which names no rank if there is only
/// one. Searches in this order, each in the order of its computation: weights; activations, at the
/// output of a block or the input of a linear layer; gradients, the last layer's first. Of
/// gradients that all ranks have summed (parallelism.zero_stage 0) the rank is not known and not
/// named. A tensor for whose values the device has no memory is left out. `next`: the step's
/// gradient_accumulation_steps micro-batches of this rank, in their order.
std::string first_non_finite(Engine& engine, Communicator& comm,
                             const std::function<Batch()>& next);

}  // namespace fp8train
