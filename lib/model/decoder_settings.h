#pragma once
// A user's settings of how a decoder computes. None of them changes which parameters it has.

#include <cstdint>
#include <string>
#include <vector>

#include "nn/moe_shape.h"
#include "nn/recompute.h"

namespace fp8train {

/// How a decoder computes its passes and its loss.
struct DecoderSettings {
  Recompute recompute = Recompute::none;
  bool offloads_saved = false;  ///< activations of blocks are in the host's memory (SavedOffload)
  double z_loss = 0.0;          ///< weight of the squared log of the softmax's normalizer
  int64_t head_chunk_rows = 0;  ///< rows of logits alive at a time; 0: by the device (nn/head.h)
  std::vector<std::string> frozen;  ///< patterns of parameters that are not trained
  MoeSettings moe = {};

  bool operator==(const DecoderSettings&) const = default;
};

}  // namespace fp8train
