#pragma once
// Tables of the linear layers of a run, as `explain` prints them.

#include <string>

#include "run_products.h"
#include "train/session.h"

namespace fp8train {

/// Returns a table of the linear layers with the formats of their products. Blocks and experts that
/// follow each other and are alike are one line, but with `every_layer`.
std::string layers_text(const RunProducts& layers, bool every_layer);

/// Returns a table of the layers of a block and the head, with what a rank has of each and what
/// crosses between ranks, and what crosses between those that share sequences; empty where ranks
/// share neither.
std::string layer_shares_text(const Session& session);

}  // namespace fp8train
