#pragma once
// Which element of a whole matrix an element of a part of it is (tensor/sharding.h), for kernels of
// host and device; and which step of a cast is made where ranks have parts.

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

/// Which row of a whole a row of a part is, or which column; the part has runs of them. As it is
/// made by default: the part is the whole.
struct ExtentMap {
  static constexpr int kMaxRuns = 4;

  int64_t whole = 0;              ///< rows of the whole; 0: the part is the whole
  int64_t begins[kMaxRuns] = {};  ///< of the part, that each run begins with, ascending
  int64_t before[kMaxRuns] = {};  ///< rows of the whole that the part lacks before each run
  int runs = 0;

  FP8TRAIN_HD int64_t of(int64_t row) const {
    int64_t lacks = 0;
    for (int run = 0; run < runs; ++run) {
      lacks = row >= begins[run] ? before[run] : lacks;
    }
    return row + lacks;
  }
  /// Returns the rows of the whole, of which the part has `own`.
  FP8TRAIN_HD int64_t extent(int64_t own) const { return whole == 0 ? own : whole; }
};

/// The steps of a cast whose scales follow from parts that several ranks have: they find the
/// largest magnitudes, agree on them, and make the codes.
enum class CastStep : uint8_t {
  all,    ///< both, of a tensor that is whole
  amax,   ///< no codes: the magnitudes are where the scales are to be
  codes,  ///< with the magnitudes that are there
};

}  // namespace fp8train
