#pragma once
// Sums in pairs: (0 + 1) + (2 + 3) and so on. 2^n neighbors from a multiple of 2^n on have a sum of
// their own, so that it has the same bits whether a rank adds them or somebody adds them all. For
// host and device.

#include <cstdint>

#include "base/host_device.h"

namespace fp8train::ops {

constexpr int kPairLevels = 8;
constexpr int64_t kMaxPaired = int64_t{1} << kPairLevels;

/// Returns item(0), ..., item(count - 1) added in pairs by add(a, b). count: 1 to kMaxPaired.
template <typename Item, typename Add>
FP8TRAIN_HD auto in_pairs(int64_t count, const Item& item, const Add& add) {
  decltype(item(0)) waiting[kPairLevels];  // of 2^level items, at each level
  for (int64_t i = 0;; ++i) {
    const bool last = i + 1 >= count;
    auto sum = item(i);
    bool carries = true;
    for (int level = 0; level < kPairLevels; ++level) {
      const bool odd = (i >> level & 1) != 0;
      if (carries && odd) {
        sum = add(waiting[level], sum);
      }
      if (carries && !odd && !last) {
        waiting[level] = sum;
        carries = false;
      }
    }
    if (last) {
      return sum;
    }
  }
}

/// N values that are added at once.
template <typename T, int N>
struct ValueRun {
  T values[N];
};
struct AddRuns {
  template <typename T, int N>
  FP8TRAIN_HD ValueRun<T, N> operator()(ValueRun<T, N> a, const ValueRun<T, N>& b) const {
    for (int j = 0; j < N; ++j) {
      a.values[j] += b.values[j];
    }
    return a;
  }
};

}  // namespace fp8train::ops
