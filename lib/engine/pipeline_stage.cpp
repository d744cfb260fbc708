#include "engine/pipeline_stage.h"

#include "base/trace.h"
#include "comm/exchange/reduce.h"
#include "engine/engine.h"
#include "model/linear_sites.h"
#include "model/step_part.h"

namespace fp8train {
namespace {

Shape batch_shape(const EngineSettings& settings) {
  return {settings.step.micro_batch_size, settings.step.seq_length};
}

PipelineShape shape_of(const EngineSettings& settings) {
  return {.stages = static_cast<int>(settings.strategy.layout.pipeline),
          .micro_batches = settings.step.gradient_accumulation_steps};
}

}  // namespace

MicroBatchMemory::MicroBatchMemory(Device& device, const EngineSettings& settings,
                                   bool numbers_passes)
    : tokens(device, DType::i32, batch_shape(settings), MemoryCategory::batch),
      targets(device, DType::i32, batch_shape(settings), MemoryCategory::batch),
      saved(device, MemoryCategory::saved_activations) {
  if (settings.masks_documents) {
    document_starts = Tensor(device, DType::i32, batch_shape(settings), MemoryCategory::batch);
  }
  if (settings.counts_targets) {
    target_share = Tensor(device, DType::f32, {1}, MemoryCategory::batch);
  }
  if (numbers_passes) {
    pass = Tensor(device, DType::i64, {1}, MemoryCategory::batch);
    fill_zero(device, pass);
  }
  of_model.tokens = tokens;
  of_model.targets = targets;
}

namespace {

/// The time of the head in blocks, by their FLOPs.
double head_blocks(const EngineSettings& settings) {
  double head = 0;
  for_each_linear(settings.model, [&](const LinearSite& site) {
    head += site.is_head ? 6.0 * static_cast<double>(site.weights()) : 0.0;
  });
  return static_cast<double>(settings.model.num_hidden_layers) * head /
         (flops_per_token(settings.model, settings.step.seq_length) - head);
}

}  // namespace

ModelPart part_of_stage(const EngineSettings& settings, int stage) {
  const ParallelLayout& layout = settings.strategy.layout;
  const auto [first, end] =
      blocks_of_stage(layout, settings.model.num_hidden_layers, stage, head_blocks(settings));
  return {first, end, stage == 0, stage + 1 == layout.pipeline};
}

std::optional<ModelPart> part_of_stage(const EngineSettings& settings, const Mesh& mesh) {
  return mesh.size(Axis::pipeline) == 1
             ? std::nullopt
             : std::optional(part_of_stage(settings, mesh.index(Axis::pipeline)));
}

StageCombiner::StageCombiner(Device& device, Communicator& stages, RankCombiner* of_stage)
    : device_(&device),
      stages_(&stages),
      of_stage_(of_stage),
      values_(device, static_cast<size_t>(stages.size()) * sizeof(double),
              MemoryCategory::communication) {}

void StageCombiner::sum(double* value) {
  if (of_stage_ != nullptr) {
    of_stage_->sum(value);
  }
  all_combine(*stages_, device_->stream(), {value, DType::f64, {1}}, ops::Combine::sum,
              values_.data());
}

PipelineStage::PipelineStage(Device& device, const EngineSettings& settings, Communicator& stages,
                             const ScalingState& scaling, RankCombiner* of_stage)
    : PipelineStage(device, settings, stages, scaling, of_stage,
                    make_schedule(ScheduleKind::one_forward_one_backward, shape_of(settings))) {}

PipelineStage::PipelineStage(Device& device, const EngineSettings& settings, Communicator& stages,
                             const ScalingState& scaling, RankCombiner* of_stage,
                             const PipelineSchedule& schedule)
    : actions(schedule.of_stage[static_cast<size_t>(stages.rank())]),
      held(check_schedule(schedule, shape_of(settings)).held[static_cast<size_t>(stages.rank())]),
      messages(device, stages,
               View{nullptr,
                    settings.plan.activation,
                    {settings.step.micro_batch_tokens() / settings.strategy.layout.tensor,
                     settings.model.hidden_size}},
               held),
      combiner(device, stages, of_stage),
      ahead(scaling.make_forward_scales()) {}

void Engine::run_stage(std::span<const PipelineAction> actions, const LoadBatch& load,
                       StagePass pass) {
  enter_step(pass.step_index);
  {
    const TraceSpan span(name_of(StepPart::start));
    clear_totals(kTrainingTotals);
    optimizer().clear_gradients(device_->stream());
  }
  StageMessages& messages = stage_->messages;
  messages.expect(actions.front());
  const auto micro_batches = static_cast<int64_t>(actions.size() / 2);
  for (size_t i = 0; i < actions.size(); ++i) {
    const PipelineAction& action = actions[i];
    MicroBatchMemory& memory = memory_of(action.micro_batch);
    pass.first = action.micro_batch == 0;
    pass.last = action.micro_batch + 1 == micro_batches;
    const View input = messages.input(action);
    if (action.kind == ActionKind::forward) {
      load(memory);
      number_pass(memory, pass.step_index, action.micro_batch);
      memory.of_model.x = input;
      memory.of_model.y = messages.output(action);
    }
    if (i + 1 < actions.size()) {
      messages.expect(actions[i + 1]);
    }
    if (action.kind == ActionKind::forward) {
      run_forward(memory, pass);
    } else {
      run_backward(memory, pass, input);
    }
    messages.send(action);
  }
  messages.finish();
  if (stage_->table != nullptr && pass.trains) {
    stage_->table->finish();
  }
}

void Engine::run_forward(MicroBatchMemory& memory, const StagePass& pass) {
  ScalingState& scaling = model_.scaling();
  scaling.read_windows();
  StepContext how = context(memory, true, pass.collects_statistics);
  how.overwrites_gradients = pass.first;
  model_.forward_part(how, memory.of_model);
  scaling.store_forward_scales(device_->stream(), memory.scales);
  move_scales(pass, ScalingPass::forward);
}

/// Scales have moved since the forward pass of this micro-batch.
void Engine::run_backward(MicroBatchMemory& memory, const StagePass& pass, const View& gradient) {
  ScalingState& scaling = model_.scaling();
  scaling.read_windows();
  StepContext how = context(memory, true, pass.collects_statistics);
  how.overwrites_gradients = pass.first;
  if (pass.last && pass.trains) {
    how.listener = strategy_->begin_exchange(true);
    how.listener = stage_->table == nullptr ? how.listener : stage_->table->begin(how.listener);
  }
  scaling.store_forward_scales(device_->stream(), stage_->ahead);
  scaling.restore_forward_scales(device_->stream(), memory.scales);
  model_.backward_part(how, memory.of_model, gradient, totals(kTrainingTotals),
                       {optimizer().loss_scale(), memory.share});
  scaling.restore_forward_scales(device_->stream(), stage_->ahead);
  memory.saved.release(0);
  move_scales(pass, ScalingPass::backward);
}

void Engine::move_scales(const StagePass& pass, ScalingPass of_pass) {
  ScalingState& scaling = model_.scaling();
  const uint64_t due = scaling.due(pass.step_index, pass.last);
  agree_on_amax();
  if (scaling.reduces(pass.last)) {
    strategy_->combine_amax(device_->stream(), scaling.shared_amax());
  }
  scaling.update(device_->stream(), due, optimizer().squared_norm(), of_pass);
  scaling.note_update(due);
}

void Engine::evaluate_part(MicroBatchMemory& memory) {
  StageMessages& messages = stage_->messages;
  const PipelineAction action = {ActionKind::forward, 0, stage_->evaluated++};
  messages.expect(action);
  memory.of_model.x = messages.input(action);
  memory.of_model.y = messages.output(action);
  model_.evaluate(context(memory, false, false), memory.of_model, totals(kEvaluationTotals));
  messages.send(action);
  messages.finish();  // ranks may agree on something before the next batch
}

}  // namespace fp8train
