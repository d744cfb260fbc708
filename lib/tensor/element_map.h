#pragma once
// Which element of a whole matrix an element of a part of it is (tensor/sharding.h), for kernels of
// host and device.

#include <cstdint>

#include "base/host_device.h"

namespace fp8train {

/// A part that has runs of rows of the whole, and of each row the same columns. As it is made by
/// default: all of the whole.
struct ElementMap {
  static constexpr int kMaxRuns = 8;

  int64_t columns = 0;                  ///< of the part
  int64_t width = 0, first_column = 0;  ///< of the whole, and of the part in it
  int64_t begins[kMaxRuns] = {};        ///< row of the part that each run begins with, ascending
  int64_t rows_before[kMaxRuns] = {};   ///< rows of the whole that the part lacks before each run
  /// Four elements of the part from a multiple of four on are such elements of the whole, too.
  bool by_fours = true;

  FP8TRAIN_HD int64_t element(int64_t local) const {
    if (columns == 0) {
      return local;
    }
    const int64_t row = local / columns;
    int64_t before = 0;
    for (int run = 0; run < kMaxRuns; ++run) {
      before = row >= begins[run] ? rows_before[run] : before;
    }
    return (row + before) * width + first_column + local - row * columns;
  }
};

}  // namespace fp8train
