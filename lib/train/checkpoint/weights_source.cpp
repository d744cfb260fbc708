#include "train/checkpoint/weights_source.h"

#include <algorithm>

#include "io/model_source.h"

namespace fp8train {
namespace {

bool is_token_table(const std::string& parameter) {
  return parameter == "embedding.weight" || parameter == "head.weight";
}

/// Whether the file has fewer rows of an embedding or head than the model.
bool has_fewer_rows(const TensorSource& source, const std::string& name,
                    const std::vector<int64_t>& shape) {
  const SafetensorsEntry* entry = source.find(name);
  return entry != nullptr && entry->shape.size() == 2 && entry->shape[0] > 0 &&
         entry->shape[0] < shape[0] && entry->shape[1] == shape[1];
}

/// The rows of the file, and for each one that it lacks their mean.
std::vector<float> read_table(const TensorSource& source, const std::string& name,
                              const std::vector<int64_t>& shape) {
  const std::vector<int64_t>& saved = source.find(name)->shape;
  std::vector<float> values = source.read_f32(name, saved);
  const auto columns = static_cast<size_t>(shape[1]);
  std::vector<double> mean(columns, 0.0);
  for (size_t i = 0; i < values.size(); ++i) mean[i % columns] += static_cast<double>(values[i]);
  for (double& value : mean) value /= static_cast<double>(saved[0]);
  for (int64_t row = saved[0]; row < shape[0]; ++row) {
    for (const double value : mean) values.push_back(static_cast<float>(value));
  }
  return values;
}

}  // namespace

std::vector<float> WeightsSource::read(const std::string& parameter, const Sharding& part,
                                       int64_t first, int64_t count) const {
  std::vector<float> values(static_cast<size_t>(count), 0.0F);
  const std::vector<StateBox> boxes = boxes_of(part, first, count);
  const bool adds_rows = missing == MissingTokens::append && is_token_table(parameter);
  for (const HfPiece& piece : hf_pieces(config, parameter)) {
    read_piece(piece, adds_rows, part, boxes, values);
  }
  return values;
}

void WeightsSource::read_piece(const HfPiece& piece, bool adds_rows, const Sharding& part,
                               const std::vector<StateBox>& boxes,
                               std::vector<float>& values) const {
  const int64_t columns = part.width();
  const std::vector<int64_t> shape = hf_shape(piece, part.whole.rank() == 1, columns);
  std::vector<float> whole;
  if (adds_rows && has_fewer_rows(tensors, piece.name, shape)) {
    whole = read_table(tensors, piece.name, shape);
  } else if (piece.transposed) {
    whole = transposed(tensors.read_f32(piece.name, shape), columns, piece.rows);
  }
  const int64_t begin = piece.begin * columns;
  const auto copy_row = [&](int64_t local, int64_t element, int64_t count) {
    const int64_t from = std::max(begin, element);
    const int64_t found = std::min(begin + piece.rows * columns, element + count) - from;
    if (found > 0) {
      float* const to = values.data() + local + (from - element);
      if (whole.empty()) {
        std::ranges::copy(tensors.read_f32(piece.name, shape, from - begin, found), to);
      } else {
        std::copy_n(whole.begin() + (from - begin), found, to);
      }
    }
  };
  for (const StateBox& box : boxes) box.for_each_row(copy_row);
}

}  // namespace fp8train
