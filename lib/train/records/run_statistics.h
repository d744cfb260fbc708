#pragma once
// Statistics of the FP8 casts of a model's tensors: sums over slots, and warnings that name the
// slot.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "precision/scaling_state.h"

namespace fp8train {

/// Signal-to-noise ratios of one class of tensors (x, w or dy) over all layers.
struct ClassSnr {
  double mean_db = 0;
  double worst_db = 0;
  std::string worst;  ///< the slot, as slot_name says
};

/// How the scales of an FP8 run behave, over all slots.
struct ScalingSummary {
  std::string formats;  ///< "fp8", "fp4", "int8", or several: "fp4+fp8"
  double saturated_percent = 0;
  double underflow_percent = 0;
  std::map<std::string, ClassSnr> snr;  ///< by class; without slots that have no SNR
};

/// Returns the sums and ratios over `reports`.
ScalingSummary summarize(const std::vector<SlotReport>& reports);

/// Returns the layer and the role of a slot: "layers.0.mlp.up.x".
std::string slot_name(const ScalingSlot& slot);

/// Returns the share of the values cast that were clipped, in percent.
double saturated_percent(const SlotReport& report);
/// Returns the share of the values cast that became zero, in percent.
double underflow_percent(const SlotReport& report);

/// Says once for each slot that its casts lose too much, and what to try.
class ScalingWarnings {
 public:
  /// Returns the lines to log after optimizer step `step` (counted from 1). There are none in the
  /// first steps, while the histories of delayed scaling, which starts with scale 1, fill. After
  /// kMostLines slots the rest are only counted.
  std::vector<std::string> after_step(int64_t step, const std::vector<SlotReport>& reports);

  /// Returns a line for the end of the run if slots were only counted, else nothing.
  std::vector<std::string> rest() const;

  static constexpr size_t kMostLines = 10;

 private:
  std::set<const ScalingSlot*> warned_;
};

/// Logs each line as a warning.
void log_warnings(const std::vector<std::string>& lines);

}  // namespace fp8train
