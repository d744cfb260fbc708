#include "engine/pipeline_stage.h"

#include "base/trace.h"
#include "comm/exchange/reduce.h"
#include "engine/engine.h"
#include "engine/pass_times.h"
#include "model/linear_sites.h"
#include "model/step_part.h"

namespace fp8train {
namespace {

Shape batch_shape(const EngineSettings& settings) {
  return {settings.step.micro_batch_size, settings.length_of_rank()};
}

StageMemory with_all(std::initializer_list<const StagePlan*> plans) {
  StageMemory memory;
  for (const StagePlan* plan : plans) {
    memory.enlarge(plan->memory);
  }
  return memory;
}

}  // namespace

BatchMemory::BatchMemory(Device& device, const EngineSettings& settings, bool numbers_passes)
    : tokens(device, DType::i32, batch_shape(settings), MemoryCategory::batch),
      targets(device, DType::i32, batch_shape(settings), MemoryCategory::batch) {
  if (settings.masks_documents) {
    document_starts =
        Tensor(device, DType::i32, {settings.step.micro_batch_size, settings.step.seq_length},
               MemoryCategory::batch);
  }
  if (settings.strategy.layout.context > 1) {
    row_starts = Tensor(device, DType::i32, batch_shape(settings), MemoryCategory::batch);
    Batch planned;  // of which meta needs the number of chunks
    planned.columns = settings.step.seq_length;
    if (settings.masks_documents) {
      planned.document_starts.assign(static_cast<size_t>(settings.step.seq_length), 0);
    }
    chunks = deal_chunks(settings, planned);
  }
  if (settings.counts_targets) {
    target_share = Tensor(device, DType::f32, {1}, MemoryCategory::batch);
  }
  if (numbers_passes) {
    pass = Tensor(device, DType::i64, {1}, MemoryCategory::batch);
    fill_zero(device, pass);
  }
}

PassMemory::PassMemory(Device& device, const ScalingState& scaling, bool splits)
    : held(device, MemoryCategory::saved_activations),
      scales(scaling.make_stored_scales(ScalingPass::forward)),
      gradient_scales(splits ? scaling.make_stored_scales(ScalingPass::backward)
                             : ScalingState::StoredScales{}) {}

double head_blocks(const EngineSettings& settings) {
  double head = 0;
  for_each_linear(settings.model, [&](const LinearSite& site) {
    head += site.is_head ? 6.0 * static_cast<double>(site.weights()) : 0.0;
  });
  return static_cast<double>(settings.model.num_hidden_layers) * head /
         (flops_per_token(settings.model, settings.step.seq_length) - head);
}

ModelPart part_of_stage(const EngineSettings& settings, int stage) {
  const ParallelLayout& layout = settings.strategy.layout;
  const double head = layout.stage_blocks.empty() ? head_blocks(settings) : 0.0;
  ModelPart part = {.chunks = {}, .embeds = stage == 0, .has_head = stage + 1 == layout.pipeline};
  for (int64_t chunk = 0; chunk < layout.virtual_stages; ++chunk) {
    part.chunks.push_back(blocks_of_part(layout, settings.model.num_hidden_layers,
                                         chunk * layout.pipeline + stage, head));
  }
  return part;
}

std::optional<ModelPart> part_of_stage(const EngineSettings& settings, const Mesh& mesh) {
  return settings.part.has_value() || mesh.size(Axis::pipeline) == 1
             ? settings.part
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
    : PipelineStage(
          device, settings, stages, scaling, of_stage,
          settings.strategy.layout.pipeline_shape(settings.step.gradient_accumulation_steps)) {}

PipelineStage::PipelineStage(Device& device, const EngineSettings& settings, Communicator& stages,
                             const ScalingState& scaling, RankCombiner* of_stage,
                             const PipelineShape& shape)
    : step(plan_stage(schedule_of(settings), shape, static_cast<size_t>(stages.rank()),
                      stages.in_stream_order(), !settings.strategy.layout.is_periodic())),
      calibration(plan_micro_batch(shape, static_cast<size_t>(stages.rank()), true)),
      evaluation(plan_micro_batch(shape, static_cast<size_t>(stages.rank()), false)),
      memory(with_all({&step, &calibration, &evaluation})),
      messages(device, stages, shape.chunks,
               View{nullptr,
                    settings.plan.activation,
                    {settings.rows_of_rank() / settings.strategy.layout.tensor,
                     settings.model.hidden_size}},
               memory),
      combiner(device, stages, of_stage),
      ahead(scaling.make_stored_scales(ScalingPass::forward)),
      gradients_ahead(step.splits ? scaling.make_stored_scales(ScalingPass::backward)
                                  : ScalingState::StoredScales{}) {}

bool Engine::shorten_steps(int64_t micro_batches) {
  const ParallelLayout& layout = settings_.strategy.layout;
  if (stage_ == nullptr) {
    return false;
  }
  stage_->short_step.reset();
  // The weights that a pass gathers depend on the pass before it.
  const bool can = layout.is_periodic() || !settings_.strategy.gathers_in_passes();
  if (micro_batches > 0 && can && layout.virtual_stages == 1 &&
      stage_->step.micro_batches > micro_batches) {
    const PipelineShape shape = layout.pipeline_shape(micro_batches);
    PipelineSchedule schedule;
    if (layout.is_periodic()) {
      schedule = make_schedule(layout.schedule, shape);
    } else {
      std::vector<PipelineAction> actions;
      for (int64_t i = 0; i < micro_batches; ++i) {
        actions.insert(actions.end(), {{ActionKind::forward, 0, i}, {ActionKind::backward, 0, i}});
        if (stage_->step.splits) {
          actions.push_back({ActionKind::weight_gradient, 0, i});
        }
      }
      schedule.of_stage.assign(static_cast<size_t>(shape.stages), actions);
    }
    StagePlan plan = plan_stage(schedule, shape, static_cast<size_t>(mesh().index(Axis::pipeline)),
                                mesh().group(Group::pipe)->in_stream_order());
    if (with_all({&plan, &stage_->step}) == stage_->step.memory) {
      stage_->short_step = std::move(plan);
    }
  }
  return stage_->short_step.has_value();
}

void Engine::run_stage(const StagePlan& plan, const LoadBatch& load, StagePass pass) {
  enter_step(pass.step_index);
  {
    const TraceSpan span(name_of(StepPart::start));
    clear_step();
  }
  StageMessages& messages = stage_->messages;
  messages.begin(pass.trains);
  messages.receive(plan.actions, plan.receives_at_first);
  const ActionKind completes = plan.splits ? ActionKind::weight_gradient : ActionKind::backward;
  GradientListener* listener = nullptr;
  for (const StageAction& step : plan.actions) {
    const auto [kind, chunk, micro_batch] = step.action;
    const MicroBatchMemory memory = memory_of(step);
    const View input = messages.input(step);
    if (kind == ActionKind::forward) {
      if (chunk == 0) {
        load(memory.batch);
        number_pass(memory.batch, pass.step_index, micro_batch);
      }
      memory.pass.of_model.tokens = memory.batch.tokens;
      memory.pass.of_model.targets = memory.batch.targets;
      memory.pass.of_model.chunk = chunk;
      memory.pass.of_model.x = input;
      memory.pass.of_model.y = messages.output(step);
    }
    messages.receive(plan.actions, step.receives);
    pass.first = micro_batch == 0;
    pass.last = micro_batch + 1 == plan.micro_batches;
    pass.listener = nullptr;
    if (kind == completes && pass.last && pass.trains) {
      if (listener == nullptr) {
        listener = strategy_->begin_exchange(true);
        listener = stage_->table == nullptr ? listener : stage_->table->begin(listener);
      }
      pass.listener = listener;
    }
    switch (kind) {
      case ActionKind::forward:
        run_forward(memory, pass);
        break;
      case ActionKind::backward:
        run_backward(memory, pass, input);
        break;
      case ActionKind::weight_gradient:
        run_weight_gradients(memory, pass);
        break;
    }
    messages.send(step);
  }
  messages.finish();
  if (pass.trains) {  // casts of weights draw as those after the last micro-batch of one rank
    number_pass(*batches_.front(), pass.step_index, plan.micro_batches - 1);
  }
  if (stage_->table != nullptr && pass.trains) {
    stage_->table->finish();
  }
}

StepContext Engine::context_of_stage(const MicroBatchMemory& memory, const StagePass& pass) {
  model_.scaling().read_windows();
  StepContext how = context(memory, true, pass.collects_statistics);
  how.held = stage_->step.splits ? &memory.pass.held : nullptr;
  how.overwrites_gradients = pass.first;
  how.listener = pass.listener;
  return how;
}

void Engine::run_forward(const MicroBatchMemory& memory, const StagePass& pass) {
  MicroBatchPass& of_model = memory.pass.of_model;
  model_.forward_part(context_of_stage(memory, pass), of_model);
  model_.scaling().store_scales(device_->stream(), memory.pass.scales);
  move_scales(pass, ScalingPass::forward, of_model.chunk);
}

/// Scales have moved since the forward pass of this micro-batch.
void Engine::run_backward(const MicroBatchMemory& memory, const StagePass& pass,
                          const View& gradient) {
  const Stream stream = device_->stream();
  const ScalingState& scaling = model_.scaling();
  MicroBatchPass& of_model = memory.pass.of_model;
  const StepContext how = context_of_stage(memory, pass);
  scaling.store_scales(stream, stage_->ahead);
  scaling.restore_scales(stream, memory.pass.scales);
  model_.backward_part(how, of_model, gradient, totals(kTrainingTotals),
                       {optimizer().loss_scale(), memory.batch.share});
  if (how.held != nullptr) {
    scaling.store_scales(stream, memory.pass.scales);  // it has cast, too
    scaling.store_scales(stream, memory.pass.gradient_scales);
  }
  scaling.restore_scales(stream, stage_->ahead);
  memory.saved.release(0);
  if (!pass.trains) {
    memory.pass.held.release(0);
  }
  move_scales(pass, ScalingPass::backward, of_model.chunk);
}

/// Codes have the scales of their passes.
void Engine::run_weight_gradients(const MicroBatchMemory& memory, const StagePass& pass) {
  const Stream stream = device_->stream();
  const ScalingState& scaling = model_.scaling();
  const StepContext how = context_of_stage(memory, pass);
  scaling.store_scales(stream, stage_->ahead);
  scaling.store_scales(stream, stage_->gradients_ahead);
  scaling.restore_scales(stream, memory.pass.scales);
  scaling.restore_scales(stream, memory.pass.gradient_scales);
  model_.add_weight_gradients(how, memory.pass.of_model);
  scaling.restore_scales(stream, stage_->ahead);
  scaling.restore_scales(stream, stage_->gradients_ahead);
  memory.pass.held.release(0);
}

/// Of what each rank has seen of its parts of tensors.
void Engine::agree_on_amax() {
  ScalingState& scaling = model_.scaling();
  if (scaling.empty()) {
    return;
  }
  if (tensor_ranks_ != nullptr) {
    tensor_ranks_->largest(context(memory_of(), true, false), scaling.amax());
  }
  const int64_t shared = scaling.shared_amax().count();
  const int64_t own = scaling.amax().count() - shared;
  if (context_ranks_ != nullptr && own > 0) {  // each data rank has its own
    context_ranks_->largest(context(memory_of(), true, false),
                            {scaling.amax().as<float>() + shared, DType::f32, {own}});
  }
}

void Engine::move_scales(const StagePass& pass, ScalingPass of_pass, int chunk) {
  ScalingState& scaling = model_.scaling();
  const uint64_t due = scaling.due(pass.step_index, pass.last);
  agree_on_amax();
  if (scaling.reduces(pass.last)) {
    strategy_->combine_amax(device_->stream(), scaling.shared_amax());
  }
  scaling.update(device_->stream(), due, optimizer().squared_norm(), of_pass, chunk);
  scaling.note_update(due);
}

StageWaits Engine::take_stage_waits() {
  if (stage_ == nullptr) {
    return {};
  }
  std::vector<double>& idle = stage_->step.idle;
  if (idle.empty()) {
    const PipelineShape shape =
        settings_.strategy.layout.pipeline_shape(settings_.step.gradient_accumulation_steps);
    idle = check_schedule(schedule_of(settings_), shape, pass_times(settings_)).idle;
  }
  StageWaits waits = {.seconds = mesh().gather_values(stage_->messages.take_waited()),
                      .planned = idle};
  if (mesh().world()->in_stream_order()) {
    waits.seconds.clear();  // streams wait, and not hosts
  }
  return waits;
}

void Engine::evaluate_parts(ActivationWatch* watch) {
  StageMessages& messages = stage_->messages;
  const StagePlan& plan = stage_->evaluation;
  messages.begin(false);
  messages.receive(plan.actions, plan.receives_at_first);
  for (const StageAction& step : plan.actions) {
    const MicroBatchMemory memory = memory_of(step);
    const MicroBatchPass batch = {.tokens = memory.batch.tokens,
                                  .targets = memory.batch.targets,
                                  .x = messages.input(step),
                                  .y = messages.output(step),
                                  .chunk = step.action.chunk,
                                  .saved = {}};
    messages.receive(plan.actions, step.receives);
    StepContext how = context(memory, false, false);
    how.watch = watch;
    model_.evaluate(how, batch, totals(kEvaluationTotals));
    messages.send(step);
  }
  messages.finish();  // ranks may agree on something before the next batch
}

}  // namespace fp8train
