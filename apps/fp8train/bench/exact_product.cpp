#include "bench/exact_product.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/math.h"
#include "base/philox.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

constexpr int64_t kChunk = 128;
constexpr int64_t kRun = 32;  // the smallest block that has a scale
// No common factor with the length of a row in chunks: rows are alike only after 8191 of them.
constexpr int64_t kPattern = kChunk * 8191;
constexpr int64_t kDense = 16384;  // K up to which no zeros are added
constexpr size_t kStaged = size_t{4} << 20;

bool one_in(int64_t count, uint64_t seed, int64_t a, int64_t b) {
  const uint64_t at = static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b);
  return philox(seed, 2, at).word[0] % static_cast<uint64_t>(count) == 0;
}

/// Up to `count` of the numbers below `extent`, the first and the last among them.
std::vector<int64_t> spread(int64_t extent, int64_t count) {
  const int64_t some = std::min(extent, count);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < some; ++i) {
    numbers.push_back(some == 1 ? 0 : i * (extent - 1) / (some - 1));
  }
  return numbers;
}

/// Numbers of which rows are made, in bf16, times 1, 2 and 4. `zeros` of 16 are 0.
const std::vector<uint16_t>* patterns(uint32_t zeros) {
  static std::map<uint32_t, std::array<std::vector<uint16_t>, 3>> all;
  std::array<std::vector<uint16_t>, 3>& made = all[zeros];
  for (int64_t i = 0; made[0].empty() || i < kPattern + kChunk; ++i) {
    const int64_t at = i % kPattern;
    const PhiloxBlock bits = philox(1, 1, static_cast<uint64_t>(at));
    const uint32_t kind = bits.word[0] % 16;
    const float run = one_in(8, 1, 0, at / kRun) ? 2.0F : 1.0F;
    const float size = kind < zeros ? 0.0F : kind >= 14 ? 3.0F : 1.0F;
    const float value = (bits.word[1] % 2 == 0 ? size : -size) * run;
    for (size_t power = 0; power < 3; ++power) {
      made[power].push_back(encode<bf16>(value * static_cast<float>(1 << power)).bits);
    }
  }
  return made.data();
}

/// The vectors along K of some rows of an operand of `extent` rows; K may come first in memory.
std::vector<float> vectors(const ExactMatrix& matrix, const std::vector<int64_t>& rows,
                           int64_t extent, int64_t k, bool k_is_first) {
  std::vector<float> values;
  std::vector<uint16_t> codes;
  for (const int64_t row : rows) {
    if (!k_is_first) {
      codes.clear();
      matrix.append_row(row, codes);
    }
    for (int64_t i = 0; i < k; ++i) {
      values.push_back(k_is_first ? matrix.at(i * extent + row)
                                  : decode(bf16{codes[static_cast<size_t>(i)]}));
    }
  }
  return values;
}

/// Whole numbers below 2^24: exact in any order.
float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  for (int64_t i = 0; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) {
      sums[j] += a[i + j] * b[i + j];
    }
  }
  for (int64_t i = count / kSums * kSums; i < count; ++i) {
    sums[0] += a[i] * b[i];
  }
  float total = 0.0F;
  for (const float sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace

ExactMatrix::ExactMatrix(int64_t rows, int64_t columns, int64_t k, uint64_t seed)
    : rows_(rows), columns_(columns), seed_(seed) {
  const double density = std::min(1.0, static_cast<double>(kDense) / static_cast<double>(k));
  patterns_ = patterns(static_cast<uint32_t>(16.0 - 10.0 * density));
}

const uint16_t* ExactMatrix::chunk(int64_t row, int64_t column) const {
  const size_t power = (one_in(4, seed_, row + 1, 0) ? 1 : 0) +
                       (one_in(4, seed_, row / kChunk + 1, column / kChunk + 1) ? 1 : 0);
  const int64_t begin = static_cast<int64_t>(seed_) * kPattern / 3 + row * columns_ + column;
  return patterns_[power].data() + begin % kPattern;
}

void ExactMatrix::append_row(int64_t row, std::vector<uint16_t>& to) const {
  for (int64_t column = 0; column < columns_; column += kChunk) {
    const uint16_t* const from = chunk(row, column);
    to.insert(to.end(), from, from + std::min(kChunk, columns_ - column));
  }
}

void ExactMatrix::fill(Device& device, const View& matrix) const {
  std::vector<uint16_t> staged;
  uint16_t* to = matrix.as<uint16_t>();
  for (int64_t row = 0; row < rows_; ++row) {
    append_row(row, staged);
    if (staged.size() >= kStaged || row + 1 == rows_) {
      device.copy_from_host(to, staged.data(), staged.size() * sizeof(uint16_t));
      to += staged.size();
      staged.clear();
    }
  }
}

float ExactMatrix::at(int64_t index) const {
  const int64_t column = index % columns_;
  return decode(bf16{chunk(index / columns_, column / kChunk * kChunk)[column % kChunk]});
}

ExactProduct::ExactProduct(const GemmShape& shape)
    : shape_(shape),
      a_(shape.m, shape.k, shape.k, 1),
      b_(shape.n, shape.k, shape.k, 2),
      sampled_rows_(spread(shape.m, 32)),
      sampled_columns_(spread(shape.n, 128)) {}

const std::vector<float>& ExactProduct::truth(const ops::Gemm& call) {
  std::vector<float>& truth = truths_[{call.a.transposed, call.b.transposed}];
  if (truth.empty()) {
    const auto left = vectors(a_, sampled_rows_, shape_.m, shape_.k, call.a.transposed);
    const auto right = vectors(b_, sampled_columns_, shape_.n, shape_.k, !call.b.transposed);
    for (size_t row = 0; row < sampled_rows_.size(); ++row) {
      for (size_t column = 0; column < sampled_columns_.size(); ++column) {
        truth.push_back(dot(left.data() + row * static_cast<size_t>(shape_.k),
                            right.data() + column * static_cast<size_t>(shape_.k), shape_.k));
      }
    }
  }
  return truth;
}

double ExactProduct::error(Device& device, const ops::Gemm& call) {
  const float start = call.beta == 0.0F ? 0.0F : 3.0F;
  // No number in fp32, and none in two of 16 bits.
  const auto unwritten = std::bit_cast<float>(uint32_t{0x7FC07FC0});
  const auto words = static_cast<int64_t>(call.c.bytes() / sizeof(float));
  ops::fill(device.stream(), {call.c.data, DType::f32, {words}},
            call.beta == 0.0F ? unwritten : start);
  ops::gemm(device.stream(), call);
  const std::vector<float>& exact = truth(call);
  double difference = 0.0;
  double total = 0.0;
  FloatTypes::with(call.c.dtype, [&]<typename T>(TypeTag<T>) {
    std::vector<T> row(static_cast<size_t>(shape_.n));
    size_t next = 0;
    for (const int64_t m : sampled_rows_) {
      device.copy_to_host(row.data(), call.c.as<T>() + m * shape_.n, row.size() * sizeof(T));
      for (const int64_t n : sampled_columns_) {
        T rounded = {};
        store_from_float(&rounded, exact[next++] + start);
        const double expected = load_as_float(&rounded);
        const double found = load_as_float(row.data() + n);
        difference += (found - expected) * (found - expected);
        total += expected * expected;
      }
    }
  });
  const double error = std::sqrt(difference / std::max(total, 1.0));
  return std::isfinite(error) ? error : std::numeric_limits<double>::max();
}

double ExactProduct::bound(DType result) {
  return result == DType::f32 ? 0x1p-16 : 0x1p-12;
}

}  // namespace fp8train
