#pragma once
// The statistics of a row of logits, and how those of several parts of it are added; for host and
// device.

#include <cstdint>

#include "numeric/math.h"
#include "ops/loss/cross_entropy.h"
#include "ops/support/in_pairs.h"

namespace fp8train::ops {

constexpr int64_t kStatistics = 3;

/// The statistics of some logits of a row, as they lie in memory.
struct LogitSum {
  float largest;  ///< -infinity: no logits
  float sum;      ///< of e^(x - largest)
  float target;   ///< the target's logit; 0: another part has it
};
static_assert(sizeof(LogitSum) == kStatistics * sizeof(float));

FP8TRAIN_HD LogitSum no_logits() {
  return {-float_of(0x7F800000U), 0.0F, 0.0F};
}

/// Returns what is subtracted from logits whose largest is `largest`: of nothing but -infinity (and
/// NaN), -infinity - -infinity must not make a NaN of its own.
FP8TRAIN_HD float base_of(float largest) {
  return largest == -float_of(0x7F800000U) ? 0.0F : largest;
}

/// Returns the statistics of a whole row. One of nothing but -infinity has no soft-max.
FP8TRAIN_HD LogitSum of_whole_row(LogitSum row) {
  row.sum = row.largest == -float_of(0x7F800000U) ? float_of(0x7FC00000U) : row.sum;
  return row;
}

struct AddLogitSums {
  FP8TRAIN_HD LogitSum operator()(const LogitSum& a, const LogitSum& b) const {
    const float largest = a.largest > b.largest ? a.largest : b.largest;
    const float base = base_of(largest);
    return {largest, a.sum * exp_f32(a.largest - base) + b.sum * exp_f32(b.largest - base),
            a.target + b.target};
  }
};

/// The statistics of the parts of all rows: [count, rows].
struct PartsOfRows {
  const LogitSum* parts;
  int64_t count, rows;

  /// Returns those of a whole row.
  FP8TRAIN_HD LogitSum combined(int64_t row) const {
    return of_whole_row(in_pairs(count, Row{parts + row, rows}, AddLogitSums{}));
  }

 private:
  struct Row {
    const LogitSum* first;
    int64_t stride;
    FP8TRAIN_HD LogitSum operator()(int64_t part) const { return first[part * stride]; }
  };
};

inline PartsOfRows parts_of_rows(const ConstView& statistics, int64_t rows) {
  return {statistics.as<LogitSum>(), rows == 0 ? 0 : statistics.count() / (rows * kStatistics),
          rows};
}

/// Returns how many of `columns` columns from `first` on the vocabulary has.
FP8TRAIN_HD int64_t used_columns(int64_t vocabulary, int64_t first, int64_t columns) {
  const int64_t left = vocabulary - first;
  return left < 0 ? 0 : (left < columns ? left : columns);
}

}  // namespace fp8train::ops
