#pragma once
// How ranks share the linear layers of a run, as `explain` prints it.

#include <string>

#include "precision/linear_plan.h"
#include "train/session.h"

namespace fp8train {

/// "mlp.up" of "layers.3.mlp.up".
std::string name_in_block(const LinearSite& site);

/// Returns a table of the layers of a block and the head, with what a rank has of each and what
/// crosses between ranks, and what crosses between those that share sequences; empty where ranks
/// share neither.
std::string layer_shares_text(const Session& session);

}  // namespace fp8train
