#pragma once
// Weights of a decoder to and from Hugging Face tensors.

#include <functional>
#include <string>
#include <vector>

#include "model/decoder.h"

namespace fp8train {

/// A named fp32 tensor on the host.
struct HostTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// Reads a tensor by its Hugging Face name; returns false when there is none. Throws CheckpointError on damage.
using ReadTensor = std::function<bool(const std::string& name, HostTensor& tensor)>;

/// Sets every parameter from its pieces. Throws CheckpointError naming what is missing or has another shape. The names may come with or without
/// GPT-2's prefix "transformer."; a tied head is not asked for.
void load_weights(Device& device, Decoder& model, const ReadTensor& read);

/// Calls `write` with every Hugging Face tensor of the model, in order, one at a time.
void for_each_weight(Device& device, Decoder& model,
                     const std::function<void(const HostTensor&)>& write);

}  // namespace fp8train
