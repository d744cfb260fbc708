#pragma once
// The extents of a row-major, packed tensor of up to four dimensions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace fp8train {

/// The extents of a tensor, the slowest first; at most kMaxRank.
class Shape {
 public:
  static constexpr size_t kMaxRank = 4;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> extents) {
    for (const int64_t extent : extents) {
      extents_[rank_++] = extent;
    }
  }

  constexpr size_t rank() const { return rank_; }
  constexpr int64_t operator[](size_t dimension) const { return extents_[dimension]; }
  constexpr int64_t back() const { return extents_[rank_ - 1]; }

  /// Returns the number of elements, which is 1 for rank 0.
  constexpr int64_t count() const {
    int64_t product = 1;
    for (size_t i = 0; i < rank_; ++i) {
      product *= extents_[i];
    }
    return product;
  }

  /// Elements divided by the last extent: the rows of the tensor seen as a matrix.
  constexpr int64_t rows() const { return rank_ == 0 || back() == 0 ? 0 : count() / back(); }

  constexpr bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) {
      return false;
    }
    for (size_t i = 0; i < rank_; ++i) {
      if (extents_[i] != other.extents_[i]) {
        return false;
      }
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> extents_ = {};
  size_t rank_ = 0;
};

/// "[768, 128]"
std::string to_string(const Shape& shape);

}  // namespace fp8train
