#include "train/weights.h"

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_names.h"

namespace fp8train {
namespace {

constexpr std::string_view kGpt2Prefix = "transformer.";

int64_t columns_of(const Parameter& parameter) {
  return parameter.shape.rank() == 1 ? 1 : parameter.shape.back();
}

std::vector<int64_t> shape_of(const Parameter& parameter, const HfPiece& piece) {
  if (parameter.shape.rank() == 1) {
    return {piece.rows};
  }
  const int64_t columns = columns_of(parameter);
  return piece.transposed ? std::vector<int64_t>{columns, piece.rows}
                          : std::vector<int64_t>{piece.rows, columns};
}

/// Swaps [rows, columns] for [columns, rows].
std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> result(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

std::string text_of(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

HostTensor read_piece(const Parameter& parameter, const HfPiece& piece, const ReadTensor& read) {
  HostTensor tensor;
  bool found = read(piece.name, tensor);
  if (!found && piece.name.starts_with(kGpt2Prefix)) {
    found = read(piece.name.substr(kGpt2Prefix.size()), tensor);
  }
  if (!found) {
    throw CheckpointError(fmt::format("the weights have no tensor '{}'", piece.name));
  }
  const std::vector<int64_t> expected = shape_of(parameter, piece);
  if (tensor.shape != expected) {
    throw CheckpointError(fmt::format("tensor '{}' has shape {}, the model's configuration asks for {}",
                                      piece.name, text_of(tensor.shape), text_of(expected)));
  }
  return tensor;
}

}  // namespace

void load_weights(Device& device, Decoder& model, const ReadTensor& read) {
  for (const auto& parameter : model.parameters().all()) {
    const int64_t columns = columns_of(*parameter);
    std::vector<float> values(static_cast<size_t>(parameter->shape.count()), 0.0F);
    for (const HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      HostTensor tensor = read_piece(*parameter, piece, read);
      if (piece.transposed) {
        tensor.values = transposed(tensor.values, columns, piece.rows);
      }
      std::copy(tensor.values.begin(), tensor.values.end(),
                values.begin() + piece.begin * columns);
    }
    copy_from_host(device, parameter->value, values.data());
  }
}

void for_each_weight(Device& device, Decoder& model,
                     const std::function<void(const HostTensor&)>& write) {
  for (const auto& parameter : model.parameters().all()) {
    const int64_t columns = columns_of(*parameter);
    const std::vector<float> values = to_host_f32(device, parameter->value);
    for (const HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      const auto begin = values.begin() + piece.begin * columns;
      HostTensor tensor = {piece.name, shape_of(*parameter, piece),
                           {begin, begin + piece.rows * columns}};
      if (piece.transposed) {
        tensor.values = transposed(tensor.values, piece.rows, columns);
      }
      write(tensor);
    }
  }
}

}  // namespace fp8train
