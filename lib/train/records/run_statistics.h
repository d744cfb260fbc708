#pragma once
// Statistics of the FP8 casts of a model's tensors: sums over slots, and warnings that name the
// slot. Also the slowest rank of a logging interval.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
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

/// The slowest rank of a logging interval, which the others wait for: the one that has spent the
/// most time in its own work.
struct Straggler {
  int rank = 0;
  Section section = Section::step;  ///< it is furthest behind the median of all ranks here
  double seconds = 0;               ///< seconds that it has worked in the interval, in all sections
  double median_seconds = 0;        ///< the median of these seconds over all ranks
};

/// Finds the slowest rank. `of_ranks` has the seconds of each rank by section; those of exchange,
/// in which a rank waits for others, do not count. Returns nothing if there is one rank. Of an even
/// number of ranks the median is the lower one.
std::optional<Straggler> find_straggler(const std::vector<SectionSeconds>& of_ranks);

}  // namespace fp8train
