#include "train/weights.h"

#include <algorithm>

#include "model/hf_names.h"

namespace fp8train {
namespace {

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

}  // namespace

void load_weights(Device& device, Decoder& model, const TensorSource& source) {
  for (const auto& parameter : model.parameters().all()) {
    const int64_t columns = columns_of(*parameter);
    std::vector<float> values(static_cast<size_t>(parameter->shape.count()), 0.0F);
    for (const HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      std::vector<float> read = source.read_f32(piece.name, shape_of(*parameter, piece));
      if (piece.transposed) {
        read = transposed(read, columns, piece.rows);
      }
      std::copy(read.begin(), read.end(), values.begin() + piece.begin * columns);
    }
    set_value(device, *parameter, values.data());
  }
}

void for_each_weight(Engine& engine, const std::function<void(const HostTensor&)>& write) {
  engine.for_each_value([&](const Parameter& parameter, const std::vector<float>& values) {
    const int64_t columns = columns_of(parameter);
    for (const HfPiece& piece : hf_pieces(engine.model().config(), parameter.name)) {
      const auto begin = values.begin() + piece.begin * columns;
      HostTensor tensor = {
          piece.name, shape_of(parameter, piece), {begin, begin + piece.rows * columns}};
      if (piece.transposed) {
        tensor.values = transposed(tensor.values, piece.rows, columns);
      }
      write(tensor);
    }
  });
}

}  // namespace fp8train
