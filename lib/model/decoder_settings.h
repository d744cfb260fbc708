#pragma once
// A user's settings of how a decoder computes. None of them changes which parameters it has.

#include <cstdint>
#include <string>
#include <vector>

namespace fp8train {

/// The results that backward computes again instead of reading them.
enum class Recompute : uint8_t { none, block };

/// How the experts of a model are trained (nn/moe.h); read if it has some.
struct MoeSettings {
  /// The tokens that an expert has memory for in a micro-batch, as a multiple of the mean. Those
  /// after them are dropped: the expert adds nothing to them. With at least experts / per_token
  /// none is ever dropped.
  double capacity_factor = 1.25;
  double balance_loss = 0.0;  ///< weight of the loss of each layer whose experts' loads differ
  double z_loss = 0.0;        ///< weight of the squared log of the normalizer of router's scores
  /// What a step changes MoeShape::has_bias biases by, towards equal loads.
  double bias_rate = 0.001;
  double max_dropped = 0.01;  ///< a step that drops more of the choices ends the run; 1: none does

  bool operator==(const MoeSettings&) const = default;
};

/// How a decoder computes its passes and its loss.
struct DecoderSettings {
  Recompute recompute = Recompute::none;
  double z_loss = 0.0;          ///< weight of the squared log of the softmax's normalizer
  int64_t head_chunk_rows = 0;  ///< rows of logits alive at a time; 0: by the device (nn/head.h)
  std::vector<std::string> frozen;  ///< patterns of parameters that are not trained
  MoeSettings moe = {};

  bool operator==(const DecoderSettings&) const = default;
};

}  // namespace fp8train
