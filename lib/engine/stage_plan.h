#pragma once
// The actions of a pipeline stage with the memory that each uses. Pure data.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/pipeline_schedule.h"

namespace fp8train {

/// An action, and the numbers of the memory that it uses.
struct StageAction {
  PipelineAction action;
  int batch = 0;   ///< tokens, from the forward pass of chunk 0 to its backward pass
  int saved = 0;   ///< activations, from a forward pass to its backward pass
  int pass = 0;    ///< all else of a micro-batch in a chunk, to its last action
  int input = -1;  ///< of a forward pass, up to its backward pass; else a gradient; -1: none
  int output = 0;  ///< of a forward pass; of the last part of the model, up to its backward pass
  /// The actions whose inputs are received from here on, in the order in which they are sent.
  std::vector<size_t> receives = {};
};

/// How much memory of each kind there is.
struct StageMemory {
  int batches = 1, saved = 1, passes = 1;
  int x = 0, y = 0, gradients = 0;
  int outputs = 0;  ///< of the last part of the model

  void enlarge(const StageMemory& other);
  bool operator==(const StageMemory&) const = default;
};

/// The actions of a stage in a step or in another pass over the model.
struct StagePlan {
  std::vector<StageAction> actions;
  std::vector<size_t> receives_at_first;  ///< as StageAction::receives, before the first action
  StageMemory memory;
  int64_t micro_batches = 1;
  bool splits = false;  ///< weight gradients are actions of their own
  /// The share of a step in which each stage of the pipeline waits, with pass_times();
  /// Engine::take_stage_waits() finds it.
  std::vector<double> idle = {};
};

/// Plans the memory of a stage. `in_stream_order`: a message waits for those before it, so that
/// receives begin when other stages send. `any_order`: others may receive results so late that a
/// stage would wait in a circle for memory of its own: it has more of it then. Throws as
/// check_schedule() does.
StagePlan plan_stage(const PipelineSchedule& schedule, const PipelineShape& shape, size_t stage,
                     bool in_stream_order, bool any_order = false);
/// The same for the forward passes of one micro-batch and, if it `trains`, its backward passes.
StagePlan plan_micro_batch(PipelineShape shape, size_t stage, bool trains);

}  // namespace fp8train
