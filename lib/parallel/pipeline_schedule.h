#pragma once
// The order in which each stage of a pipeline runs forward and backward passes. Pure data, made by
// functions and checked by simulation. Stage s of p has the parts s, s + p, .. of the model, which
// are its chunks 0, 1, ..; with one chunk each stage has consecutive layers. The passes of a chunk,
// and of each kind, are in the order of micro-batches, so that gradients are added as one rank adds
// them.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fp8train {

/// The orders that make_schedule() makes.
enum class ScheduleKind : uint8_t {
  one_forward_one_backward,  ///< 1F1B (PipeDream-Flush, arXiv 2104.04473, section 2.2)
  interleaved,               ///< 1F1B with several chunks on each stage (the same, section 2.2)
  zero_bubble,               ///< 1F1B whose weight gradients wait for idle time (arXiv 2401.10241)
};
inline constexpr std::pair<ScheduleKind, std::string_view> kScheduleKinds[] = {
    {ScheduleKind::one_forward_one_backward, "1f1b"},
    {ScheduleKind::interleaved, "interleaved"},
    {ScheduleKind::zero_bubble, "zero_bubble"}};

enum class ActionKind : uint8_t {
  forward,
  backward,         ///< gradients of inputs; of weights too if the schedule has no weight_gradient
  weight_gradient,  ///< gradients of weights
};

/// One pass of a chunk over a micro-batch.
struct PipelineAction {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;
  int64_t micro_batch = 0;

  bool operator==(const PipelineAction&) const = default;
};

/// The actions of each stage, in order.
struct PipelineSchedule {
  std::vector<std::vector<PipelineAction>> of_stage;
  std::vector<size_t> lines = {};  ///< of the text that read_schedule() has read, by stage

  bool empty() const { return of_stage.empty(); }
  /// Whether weight gradients are actions of their own.
  bool splits() const;
  bool operator==(const PipelineSchedule& other) const { return of_stage == other.of_stage; }
};

/// The pipeline that a schedule is for.
struct PipelineShape {
  int stages = 1, chunks = 1;  ///< chunks of each stage
  int64_t micro_batches = 1;
};

/// How long an action of each kind takes, in any unit.
struct ActionTimes {
  double forward = 1, backward = 1, weight_gradient = 1;
};

/// The cost of a schedule.
struct ScheduleCost {
  double bubble = 0;          ///< idle time of the stage that works most, per time of its work
  std::vector<int64_t> held;  ///< micro-batches whose activations a stage stores at most, per chunk
  std::vector<double> work;   ///< time of each stage's actions
  std::vector<double> ends;   ///< time at which each stage ends
  std::vector<double> idle;   ///< share of the step in which a stage waits
};

/// The order in which a stage sends and receives, if all passes take as long.
struct StageOrder {
  /// A message to the stage: the number of the action that reads it, and how many actions the stage
  /// begins before it is sent. Where stages receive no later, messages that wait for all before
  /// them wait for each other in no circle.
  struct Input {
    size_t action = 0, begun = 0;
  };
  std::vector<Input> inputs;  ///< in the order in which they are sent
  /// For each action, how many actions of the stage begin before another stage begins the one that
  /// reads the result. 0: none reads it.
  std::vector<size_t> begun_when_read;
};

/// Makes a schedule. The first two kinds have the bubbles (stages - 1) / (chunks * micro_batches)
/// of their papers. zero_bubble is made for passes with the times `of_parts`, in the order of the
/// model (empty: all take as long): with these it is no slower than 1F1B, and it stores no more
/// micro-batches than there are stages. Throws ConfigError with the nearest number that works where
/// the kind has no schedule of this shape.
PipelineSchedule make_schedule(ScheduleKind kind, const PipelineShape& shape,
                               const std::vector<ActionTimes>& of_parts = {});

/// Runs the schedule on paper with the times of each of the model's parts, in the order of the
/// model; empty: all take as long. Throws ConfigError that names the stage, its line where it was
/// read from a text, and the action if an action is missing, comes twice or is out of order, or if
/// stages wait for each other in a circle.
ScheduleCost check_schedule(const PipelineSchedule& schedule, const PipelineShape& shape,
                            const std::vector<ActionTimes>& of_parts = {});

/// Returns the order of a stage. `schedule`: one that check_schedule() accepts.
StageOrder order_of_stage(const PipelineSchedule& schedule, const PipelineShape& shape,
                          size_t stage);

/// "F3": forward of micro-batch 3; "B3.1": backward of chunk 1; "W3": weight gradients.
std::string text_of(const PipelineAction& action);
/// A line for each stage: "stage 2: F0 F1 B0 ..".
std::string text_of(const PipelineSchedule& schedule);
/// Reads what text_of() writes; # begins a comment. Throws ConfigError with the line and the word
/// that it cannot read.
PipelineSchedule read_schedule(std::string_view text);

}  // namespace fp8train
