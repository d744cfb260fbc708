#pragma once
// Settings of all strategies that exchange gradients.

#include <cstdint>

namespace fp8train {

struct ExchangeSettings {
  /// Of gradients in a bucket. A parameter that has more is a bucket of its own, which is exchanged
  /// in pieces of at most as many.
  int64_t bucket_bytes = int64_t{25} << 20;
  bool self_exact = false;  ///< PrecisionPlan::self_exact
};

}  // namespace fp8train
