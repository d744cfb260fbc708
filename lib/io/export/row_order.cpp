#include "io/export/row_order.h"

#include <algorithm>

#include "base/error.h"

namespace fp8train {
std::vector<float> neighbour_rope_rows(const std::vector<float>& weight, int64_t heads,
                                       int64_t head_dim) {
  const auto count = static_cast<int64_t>(weight.size());
  check(head_dim % 2 == 0 && count % (heads * head_dim) == 0,
        "the weight does not have heads * head_dim rows");
  const int64_t columns = count / (heads * head_dim);
  std::vector<float> moved(weight.size());
  for (int64_t to = 0; to < heads * head_dim; ++to) {
    const int64_t row = to % head_dim;
    const int64_t from = to - row + row / 2 + (row % 2 == 0 ? 0 : head_dim / 2);
    std::copy_n(weight.begin() + from * columns, columns, moved.begin() + to * columns);
  }
  return moved;
}

std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> result(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

}  // namespace fp8train
