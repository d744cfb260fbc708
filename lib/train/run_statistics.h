#pragma once
// Saturation and underflow of FP8 casts, summed over a model's slots.

#include <vector>

#include "precision/scaling_state.h"

namespace fp8train {

struct ScalingSummary {
  double saturated_percent = 0;
  double underflow_percent = 0;
  const SlotReport* worst_underflow = nullptr;  ///< into the reports given
};

ScalingSummary summarize(const std::vector<SlotReport>& reports);

}  // namespace fp8train
