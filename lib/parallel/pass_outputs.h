#pragma once
// Times of a pipeline's passes, as a schedule is run on paper.

#include <limits>
#include <vector>

#include "parallel/pipeline_schedule.h"

namespace fp8train {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

class PassOutputs {
 public:
  explicit PassOutputs(const PipelineShape& shape);

  /// Returns the time of the pass that sends the input of an action from another stage; 0 if none
  /// does.
  double input(int stage, const PipelineAction& action) const {
    return neighbour(stage, action, -1);
  }
  /// Returns the time of the pass of another stage that reads the result of an action; 0 if none
  /// does.
  double reader(int stage, const PipelineAction& action) const {
    return neighbour(stage, action, 1);
  }
  /// Returns the time from which a stage can run an action; kNever: what it waits for has not
  /// begun.
  double ready(int stage, const PipelineAction& action) const;
  void set(int stage, const PipelineAction& action, double time);

 private:
  double neighbour(int stage, const PipelineAction& action, int step) const;
  int part_of(int stage, const PipelineAction& action) const {
    return action.chunk * shape_.stages + stage;
  }
  size_t index(ActionKind kind, int part, int64_t micro_batch) const {
    const int64_t pass = part + static_cast<int64_t>(kind) * parts_;
    return static_cast<size_t>(pass * shape_.micro_batches + micro_batch);
  }

  PipelineShape shape_;
  int parts_;
  std::vector<double> ends_;
};

/// Returns the time of an action. `splits`: weight gradients are actions of their own.
double time_of(ActionKind kind, const ActionTimes& times, bool splits);

/// The run of a schedule on paper.
struct PaperRun {
  PassOutputs outputs;
  std::vector<std::vector<double>> starts;  ///< of each stage's actions, as far as they can begin
  std::vector<double> ends, work;           ///< of each stage

  /// Returns the time at which the last stage ends.
  double end() const;
};

/// Runs a schedule of as many stages as `shape` has, whose actions are all in that shape.
PaperRun run_on_paper(const PipelineSchedule& schedule, const PipelineShape& shape,
                      const std::vector<ActionTimes>& of_parts);

}  // namespace fp8train
