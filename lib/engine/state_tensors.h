#pragma once
// The tensors of an engine's state that a checkpoint stores: moments, values whose codes are not in
// the files of weights, and factors of automatic scales. They are views of the device's memory.
//
// Files know tensors of the whole model, and boxes of them. A rank's part of a tensor is one box or
// several: "moment1.layers.0.mlp.up.weight@4096" has the elements of the whole from 4096 on, and
// "..@64,512" of row 64 and the next ones the columns from 512 on.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "model/hf_names.h"

namespace fp8train {

/// Elements of a whole tensor that follow one another in a part of it: all of them in a row of the
/// whole, or whole rows, or the same columns of rows.
struct StateBox {
  int64_t local = 0;    ///< element of the part that the box begins with
  int64_t element = 0;  ///< that of the whole
  int64_t count = 0;
  int64_t columns = 0;  ///< elements that follow one another in the whole: `count`, or of each row
  int64_t width = 0;    ///< of a row of the whole

  bool is_range() const { return columns == count; }
  /// Calls visit(local, element, columns) for each row.
  template <typename Visit>
  void for_each_row(const Visit& visit) const {
    for (int64_t at = 0, row = element; at < count; at += columns, row += width) {
      visit(local + at, row, columns);
    }
  }
};

/// Returns the boxes of `count` elements, flat, of a part from element `first` on.
std::vector<StateBox> boxes_of(const Sharding& part, int64_t first, int64_t count);

/// A state of a parameter, or of a part of it.
struct StateTensor {
  std::string name;      ///< "moment1.layers.0.mlp.up.weight"
  Encoded tensor;        ///< on the device, this rank's part
  Sharding sharding;     ///< the part of the whole that the rank's layers have
  int64_t first = 0;     ///< element of that part that `tensor` begins with
  bool whole = true;     ///< `tensor` is all of the whole
  bool is_saved = true;  ///< false: another rank saves the same
  int64_t used = 0;      ///< elements of the whole that the model has; padding follows them

  /// Calls visit(name in files, codes or scales, box) for each box of codes and of their scales, at
  /// last for the scale of a whole tensor. Throws ConfigError where elements with one scale lie in
  /// two boxes.
  void for_each_box(
      const std::function<void(const std::string&, const View&, const StateBox&)>& visit) const;
};

/// A tensor of a file.
struct SavedTensor {
  std::string name;
  View view;
  std::vector<int64_t> shape;
};

constexpr const char* kScaleSuffix = ".scale";  ///< ends the names of scales

/// Returns the tensors that this rank updates, in the order of the file. A rank without elements of
/// a tensor with one scale still has the scale.
std::vector<StateTensor> state_tensors(Engine& engine);

/// Returns the factors of automatic scales, which are the same on all ranks that have the
/// parameter.
std::vector<std::pair<std::string, View>> state_factors(Engine& engine);

/// Returns the scales without the memory for an amax that follows the one scale of a tensor.
View saved_scales(const Encoded& tensor);

/// Returns the codes; those of four bits, which files do not know, as bytes with two of them.
View saved_codes(const Encoded& tensor);
/// Returns the box of saved_codes() that has a box's elements.
StateBox saved_box(const Encoded& tensor, const StateBox& box);

/// Returns the tensors of a file with these states, in its order.
std::vector<SavedTensor> saved_tensors(const std::vector<StateTensor>& states);
/// Returns the tensors of this rank's file, in its order.
std::vector<SavedTensor> saved_tensors(Engine& engine);

/// The number of this rank among those that write what they alone have, and of all of them.
struct StateWriter {
  int rank = 0, ranks = 1;
  bool writes = true;     ///< false: another rank writes the same
  bool in_parts = false;  ///< no rank has all weights
};
StateWriter state_writer(const ParameterStore& store, const Mesh& mesh);
StateWriter state_writer(Engine& engine);

/// Returns the values that this rank copies to save them, "value.NAME" as they are stored: its
/// parts or, if ranks have whole weights, those of the model's files r, r + n, .. for rank r of n.
/// `files` may be empty where ranks have parts and the files have all parameters.
std::vector<StateTensor> saved_weights(const ParameterStore& store, const Mesh& mesh,
                                       const std::vector<std::vector<ModelTensor>>& files);

/// Returns the host bytes of the copy that this rank makes of the engine's state to save it, on any
/// device.
size_t state_copy_bytes(Engine& engine);

}  // namespace fp8train
