#pragma once
// The further parts of an engine whose model is a part of a pipeline: its actions, the exchange
// with its neighbours and the sums over stages.

#include <memory>
#include <optional>

#include "comm/mesh.h"
#include "device/arena.h"
#include "engine/batch.h"
#include "engine/stage_messages.h"
#include "engine/tied_table.h"
#include "model/decoder.h"
#include "nn/context_exchange.h"
#include "optim/optimizer.h"
#include "parallel/layout.h"

namespace fp8train {

struct EngineSettings;

/// The memory of one batch.
struct BatchMemory {
  /// `numbers_passes`: casts of the model round stochastically.
  BatchMemory(Device& device, const EngineSettings& settings, bool numbers_passes);

  Tensor tokens, targets;
  Tensor document_starts;  ///< used if documents are masked
  Tensor row_starts;       ///< used if ranks share sequences (StepContext)
  Tensor target_share;     ///< used if targets are counted
  Tensor pass;             ///< StepContext::pass
  float share = 1.0F;      ///< Engine::target_share()
  ChunkDeal chunks;        ///< used if ranks share sequences
};

/// Returns the positions that ranks which share sequences have of those of a batch.
ChunkDeal deal_chunks(const EngineSettings& settings, const Batch& batch);

/// The memory of a micro-batch in a chunk, from its forward pass to its last action. Activations
/// that end with its backward pass have memory of their own.
struct PassMemory {
  PassMemory(Device& device, const ScalingState& scaling, bool splits);

  MicroBatchPass of_model;
  Arena held;  ///< StepContext::held, if weight gradients are actions of their own
  ScalingState::StoredScales scales;
  ScalingState::StoredScales gradient_scales;  ///< used if so
};

/// The memory of one pass over a micro-batch.
struct MicroBatchMemory {
  BatchMemory& batch;
  Arena& saved;
  PassMemory& pass;
};

/// Returns the time of the head in blocks of the model, by their FLOPs.
double head_blocks(const EngineSettings& settings);
/// Returns the part of the model that a stage of a pipeline has: a function of the settings alone,
/// and not of the device. Throws ConfigError where the model cannot be divided so.
ModelPart part_of_stage(const EngineSettings& settings, int stage);
/// Returns the part of the model of this rank's stage; nothing with one stage. Throws ConfigError
/// where the model cannot be divided so.
std::optional<ModelPart> part_of_stage(const EngineSettings& settings, const Mesh& mesh);

/// Adds the norm of a stage to those of the others.
class StageCombiner final : public RankCombiner {
 public:
  /// `of_stage`: combines the ranks of this stage; null: they have the same parameters.
  StageCombiner(Device& device, Communicator& stages, RankCombiner* of_stage);
  void sum(double* value) override;
  void largest(const View& values) override { of_stage_->largest(values); }
  void largest_of_experts(const View& values) override { of_stage_->largest_of_experts(values); }
  bool of_parts() const override { return of_stage_ != nullptr && of_stage_->of_parts(); }

 private:
  Device* device_;
  Communicator* stages_;
  RankCombiner* of_stage_;
  Buffer values_;
};

struct PipelineStage {
  /// `scaling` is that of the stage's part of the model.
  PipelineStage(Device& device, const EngineSettings& settings, Communicator& stages,
                const ScalingState& scaling, RankCombiner* of_stage);

  StagePlan step, calibration, evaluation;
  StageMemory memory;  ///< of any of them
  StageMessages messages;
  StageCombiner combiner;
  /// The scales of the present while an action has those of its micro-batch.
  ScalingState::StoredScales ahead, gradients_ahead;
  std::optional<StagePlan> short_step;  ///< in place of `step` (Engine::shorten_steps())
  std::unique_ptr<TiedTable> table;     ///< null: this stage shares none

 private:
  PipelineStage(Device& device, const EngineSettings& settings, Communicator& stages,
                const ScalingState& scaling, RankCombiner* of_stage, const PipelineShape& shape);
};

}  // namespace fp8train
