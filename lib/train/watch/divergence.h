#pragma once
// Decides when a run has diverged: too many skipped steps in a row, or a spike of the loss. Every
// rank sees the same numbers, so all decide the same at the same step. Host memory.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/settings.h"
#include "engine/expert_loads.h"
#include "optim/optimizer.h"

namespace fp8train {

/// The sign by which a divergence was found.
enum class DivergenceKind : uint8_t {
  skipped_steps,        ///< training.max_consecutive_skips, or trailing ones at the end
  non_finite_gradient,  ///< training.non_finite: stop
  non_finite_weight,    ///< found when saving
  non_finite_loss,      ///< the loss of the last step
  loss_spike,           ///< training.spike_threshold
};
/// Returns "skipped_steps" and so on, as metrics.jsonl has it.
const char* name_of(DivergenceKind kind);

/// A run has diverged. The exit code is 5, unless the run goes back to a checkpoint. All ranks
/// throw it at the same step.
class DivergenceError : public NumericError {
 public:
  /// `first_step`: a checkpoint of it or of a later one is not to be trusted.
  DivergenceError(const std::string& message, DivergenceKind kind, int64_t first_step)
      : NumericError(message), kind_(kind), first_step_(first_step) {}

  DivergenceKind kind() const { return kind_; }
  int64_t first_step() const { return first_step_; }

 private:
  DivergenceKind kind_;
  int64_t first_step_;
};

/// Returns the error of a run whose last steps, up to `step`, were all skipped. `remark`: at its
/// end.
DivergenceError only_skipped(const ops::StepControl& control, int64_t step,
                             const std::string& remark);

/// Throws NumericError where experts have dropped more than the settings allow.
void check_dropped(int64_t step, const ExpertLoads& loads, const MoeSettings& settings);

/// One return to an older checkpoint.
struct Rollback {
  int64_t from_step = 0;      ///< the step at which the run had diverged
  int64_t to_step = 0;        ///< the step of the checkpoint
  uint64_t first_sample = 0;  ///< samples [first, end) of the loader are not trained on again
  uint64_t end_sample = 0;
  std::string kind;  ///< name_of

  bool operator==(const Rollback&) const = default;
};

/// The state of a spike detector, for checkpoints.
struct SpikeHistory {
  std::vector<double> losses;  ///< the last training.spike_window losses that were not high
  int64_t high_steps = 0;      ///< up to the last step
  int64_t first_high = 0;      ///< the step at which these began

  bool operator==(const SpikeHistory&) const = default;
};

/// A loss is high when it is above mean + spike_threshold * sd of the window: the losses (mean in
/// nats per target) of the last spike_window steps that were not high themselves; sd has the
/// divisor n - 1. Nothing is high until the window is full. spike_steps high losses in a row are a
/// spike. A loss that is not finite counts as neither: such steps are skipped ones.
///
/// Threshold, window and the answer (go back to before the spike, leave out the batches seen since)
/// follow the spike score of OLMo 2 (arXiv 2501.00656: seven standard deviations of the last 1000
/// values) and PaLM (arXiv 2204.02311, section 5.1).
class SpikeDetector {
 public:
  explicit SpikeDetector(const TrainingSettings& settings)
      : threshold_(settings.spike_threshold),
        window_(static_cast<size_t>(settings.spike_window)),
        steps_(settings.spike_steps) {}

  bool enabled() const { return threshold_ > 0; }
  /// Adds the loss of a step, in nats per target. Steps come in their order, counted from 1. After
  /// a spike losses are not read until restore().
  void add(int64_t step, double loss);

  bool has_spike() const { return enabled() && history_.high_steps >= steps_; }
  /// Describes a spike: "the losses of 3 steps in a row, from step 38 on, were above 2.4100: the
  /// mean of ...". Called while has_spike() is true.
  std::string describe() const;

  const SpikeHistory& history() const { return history_; }
  /// Restores the history of a checkpoint. If its window is longer, only the newest losses remain.
  void restore(const SpikeHistory& history);

 private:
  struct Limit {
    double mean, sd, value;
  };
  Limit limit() const;

  double threshold_;
  size_t window_;
  int64_t steps_;
  SpikeHistory history_;
};

}  // namespace fp8train
