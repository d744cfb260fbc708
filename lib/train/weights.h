#pragma once
// Weights of a decoder to and from Hugging Face tensors.

#include <functional>
#include <string>
#include <vector>

#include "io/tensor_source.h"
#include "model/decoder.h"
#include "train/engine.h"

namespace fp8train {

/// A named fp32 tensor on the host.
struct HostTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// Sets every parameter from its pieces. Throws CheckpointError naming what is missing, has another
/// shape or is not finite. A tied head is not asked for.
void load_weights(Device& device, Decoder& model, const TensorSource& source);

/// Calls `write` with every Hugging Face tensor of the model, in order, one at a time. Collective
/// where ranks have parts of the weights.
void for_each_weight(Engine& engine, const std::function<void(const HostTensor&)>& write);

}  // namespace fp8train
