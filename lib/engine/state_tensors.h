#pragma once
// The tensors of an engine's state that a checkpoint stores: moments, values whose codes are not in
// the file of weights, and factors of automatic scales. They are views of the device's memory. A
// rank's part of a tensor is named by its first element: "moment1.layers.0.mlp.up.weight@4096" has
// the elements from 4096 on.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace fp8train {

/// A state of a parameter, or of a part of it.
struct StateTensor {
  std::string name;   ///< "moment1.layers.0.mlp.up.weight"
  Encoded tensor;     ///< on the device, this rank's part
  Shape shape;        ///< of the whole
  int64_t first = 0;  ///< element that the part begins with
  bool whole = true;
};

/// A tensor of the file.
struct SavedTensor {
  std::string name;
  View view;
  std::vector<int64_t> shape;
};

constexpr const char* kScaleSuffix = ".scale";  ///< ends the names of scales

/// Returns the tensors that this rank updates, in the order of the file. A rank without elements of
/// a tensor with one scale still has the scale.
std::vector<StateTensor> state_tensors(Engine& engine);

/// Returns the factors of automatic scales, which are the same on all ranks.
std::vector<std::pair<std::string, View>> state_factors(Engine& engine);

/// Returns the scales without the memory for an amax that follows the one scale of a tensor.
View saved_scales(const Encoded& tensor);

/// Returns the tensors of this rank's file, in its order.
std::vector<SavedTensor> saved_tensors(Engine& engine);

/// Whether this rank writes a file: if ranks share the states, one rank of each part does.
bool writes_optimizer(Engine& engine, int rank);

/// Returns the host bytes of the copy that `rank` makes of this engine's state to save it, on any
/// device, and of the weights that it transposes for a model folder.
size_t state_copy_bytes(Engine& engine, int rank);

}  // namespace fp8train
