#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/key_error.h"
#include "base/math.h"
#include "base/trace.h"
#include "device/device_questions.h"
#include "engine/engine_layout.h"
#include "model/step_part.h"
#include "ops/pointwise/elementwise.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

/// Returns null where the group has one rank.
std::unique_ptr<TensorRanks> ranks_of(const Mesh& mesh, Group group) {
  Communicator* const ranks = mesh.group(group);
  return ranks == nullptr ? nullptr : std::make_unique<TensorRanks>(*ranks);
}

}  // namespace

StrategySite strategy_site(const EngineSettings& settings, const Mesh& mesh) {
  return {.mesh = mesh,
          .settings = settings.strategy,
          .trains = settings.trains,
          .accumulates = settings.step.gradient_accumulation_steps > 1 ||
                         settings.strategy.layout.splits_backward(),
          .ties_embeddings = settings.model.tie_word_embeddings,
          .self_exact = settings.plan.self_exact,
          .whole_cost = optimizer_named(settings.optimizer.name).whole_cost};
}

Engine::Engine(Device& device, const EngineSettings& settings, Communicator* comm)
    : device_(&device),
      settings_(settings),
      strategy_(make_strategy(strategy_site(settings, make_mesh(settings.strategy.layout, comm)))),
      model_(device, settings.model, settings.plan,
             {.settings = settings.step.decoder,
              .gradients = settings.trains,
              .sharing = strategy_->sharing(),
              .part = part_of_stage(settings, mesh()),
              .tensor = tensor_share(settings, mesh()),
              .experts = expert_share(settings, mesh(),
                                      !strategy_->sharing().shards && !strategy_->sharing().owners),
              .offloads = settings.optimizer.offloads}),
      scratch_(device, MemoryCategory::workspace),
      totals_(device, 2 * sizeof(Totals), MemoryCategory::batch) {
  check_documents(settings, device.traits());
  if (settings.strategy.layout.tensor_parts > 0 && !counts_only(device) && !is_host(device)) {
    throw KeyError("parallelism.tensor_parts",
                   ": only sums on the cpu have the same bits for any number of "
                   "ranks; "
                   "leave it out, or take device: cpu");
  }
  tensor_ranks_ = ranks_of(mesh(), Group::tensor);
  context_ranks_ = ranks_of(mesh(), Group::context);
  expert_ranks_ = ranks_of(mesh(), Group::expert);
  if (settings.loss_history > 0) {
    loss_history_ = Buffer(device, static_cast<size_t>(settings.loss_history) * sizeof(Totals),
                           MemoryCategory::batch);
  }
  if (settings.trains) {
    optimizer_ = make_optimizer({.device = &device,
                                 .parameters = &model_.parameters(),
                                 .settings = settings.optimizer,
                                 .dynamic_loss_scaling = settings.plan.dynamic_loss_scaling,
                                 .seed = settings.step.seed});
    optimizer_->set_rounds_gradients(!strategy_->rounds_gradients() && !settings.plan.self_exact);
  }
  if (Communicator* const stages = mesh().group(Group::pipe); stages != nullptr) {
    stage_ = std::make_unique<PipelineStage>(device, settings, *stages, model_.scaling(),
                                             strategy_->combiner());
    const ModelPart& part = model_.part();
    const Parameter& table = *model_.parameters().all().front();
    if (settings.model.tie_word_embeddings && settings.trains && table.trained &&
        (part.embeds || part.has_head)) {
      stage_->table =
          std::make_unique<TiedTable>(device, *stages, table, settings.strategy.bucket_bytes);
    }
  }
  const StageMemory in_flight = stage_ == nullptr ? StageMemory() : stage_->memory;
  for (int i = 0; i < in_flight.batches; ++i) {
    batches_.push_back(
        std::make_unique<BatchMemory>(device, settings, model_.scaling().rounds_stochastically()));
  }
  for (int i = 0; i < in_flight.saved; ++i) {
    saved_.push_back(std::make_unique<Arena>(device, MemoryCategory::saved_activations));
  }
  for (int i = 0; i < in_flight.passes; ++i) {
    passes_.push_back(std::make_unique<PassMemory>(device, model_.scaling(),
                                                   stage_ != nullptr && stage_->step.splits));
  }
  if (const View own = model_.expert_loads();
      !own.empty() && mesh().group(Group::stage) != nullptr) {
    gathered_loads_ =
        Tensor(device, DType::i64, {mesh().size(Group::stage), own.shape[0], own.shape[1]},
               MemoryCategory::communication);
  }
  settings_.step.cuda_graphs = settings.step.cuda_graphs && strategy_->can_be_recorded() &&
                               stage_ == nullptr && tensor_ranks_ == nullptr &&
                               context_ranks_ == nullptr && expert_ranks_ == nullptr &&
                               model_.offload() == nullptr && !settings.step.decoder.moe.dropless;
  strategy_->attach(device, model_.parameters(), model_.scaling().amax());
  device.fill_zero(totals_.data(), totals_.bytes());
}

Engine::~Engine() {
  stage_.reset();
  strategy_.reset();
}

void Engine::reserve(const StepPlan& plan) {
  for (const auto& saved : saved_) {
    saved->reserve(plan.saved_bytes);
  }
  for (const auto& pass : passes_) {
    pass->held.reserve(plan.held_bytes);
  }
  scratch_.reserve(plan.scratch_bytes);
  if (model_.offload() != nullptr) {
    model_.offload()->reserve(plan.offloaded);
  }
}

StepPlan Engine::high_water() const {
  StepPlan plan = {.scratch_bytes = scratch_.high_water()};
  for (const auto& saved : saved_) {
    plan.saved_bytes = std::max(plan.saved_bytes, saved->high_water());
  }
  for (const auto& pass : passes_) {
    plan.held_bytes = std::max(plan.held_bytes, pass->held.high_water());
  }
  if (model_.offload() != nullptr) {
    plan.offloaded = model_.offload()->high_water();
  }
  return plan;
}

StepContext Engine::context(const MicroBatchMemory& memory, bool training,
                            bool collect_statistics) {
  return {.device = device_,
          .stream = device_->stream(),
          .saved = &memory.saved,
          .scratch = &scratch_,
          .training = training,
          .plain = plain_,
          .collect_statistics = collect_statistics,
          .deterministic = settings_.step.deterministic,
          .document_starts = memory.batch.document_starts.view(),
          .row_starts = memory.batch.row_starts.view(),
          .target_share = memory.batch.target_share.view().as<float>(),
          .seed = settings_.step.seed,
          .pass = memory.batch.pass.view().as<uint64_t>(),
          .gatherer = strategy_->gatherer(),
          .tensor_ranks = tensor_ranks_.get(),
          .tensor_parts = settings_.strategy.layout.parts_of_rank(),
          .sums_in_fp32 = settings_.strategy.layout.tensor_parts > 0,
          .context_ranks = context_ranks_.get(),
          .chunks = settings_.strategy.layout.context_kind == ContextKind::gather
                        ? &memory.batch.chunks
                        : nullptr,
          .expert_ranks = expert_ranks_.get(),
          .counted_rows = training ? 0 : counted_rows_};
}

void Engine::weights_changed() {
  strategy_->values_changed();
  model_.refresh_weights(context(memory_of(), true, false), false);
}

LossTotals Engine::totals(int slot) const {
  Totals* entry = static_cast<Totals*>(totals_.data()) + slot;
  return {&entry->sum, &entry->count, nullptr, &entry->z_sum};
}

void Engine::clear_totals(int slot) {
  device_->fill_zero(static_cast<Totals*>(totals_.data()) + slot, sizeof(Totals));
}

/// Flags that ranks exchange go with their totals.
LossReport Engine::read_totals(int slot, const SectionSeconds& seconds,
                               std::vector<SectionSeconds>* of_ranks) const {
  struct OfRank {
    Totals totals;
    SectionSeconds seconds;
  };
  Totals own = {};
  device_->copy_to_host(&own, static_cast<Totals*>(totals_.data()) + slot, sizeof(own));
  Totals all = {};
  for (const OfRank& of_rank : mesh().gather_values(OfRank{own, seconds})) {
    all.sum += of_rank.totals.sum;
    all.count += of_rank.totals.count;
    all.z_sum += of_rank.totals.z_sum;
    if (of_ranks != nullptr) {
      of_ranks->push_back(of_rank.seconds);
    }
  }
  const auto count = static_cast<double>(std::max<int64_t>(all.count, 1));
  return {all.sum / count, all.count, all.z_sum / count};
}

void Engine::enter_step(int64_t step_index) {
  plain_ = settings_.is_plain(step_index);
  model_.enter_step(step_index);
}

void Engine::upload(const Batch& batch, BatchMemory& memory) const {
  check(batch.rows == settings_.step.micro_batch_size && batch.columns == settings_.step.seq_length,
        "a batch has the shape that the engine was built for");
  if (context_ranks_ == nullptr) {
    copy_from_host(*device_, memory.tokens, batch.tokens.data());
    copy_from_host(*device_, memory.targets, batch.targets.data());
  } else {
    upload_part(batch, memory);
  }
  if (settings_.masks_documents) {
    copy_from_host(*device_, memory.document_starts, batch.document_starts.data());
  }
  memory.share = target_share(batch);
  if (settings_.counts_targets) {
    copy_from_host(*device_, memory.target_share, &memory.share);
    memory.share = target_share({});  // of what is added for each position
  }
}

ChunkDeal deal_chunks(const EngineSettings& settings, const Batch& batch) {
  const ParallelLayout& layout = settings.strategy.layout;
  if (layout.context_kind == ContextKind::heads) {
    return deal_in_order(layout.context);
  }
  return batch.document_starts.empty()
             ? deal_ends(layout.context)
             : deal_documents(batch.document_starts, batch.columns, layout.context);
}

/// The ranks of the context axis are given the same whole sequences.
void Engine::upload_part(const Batch& batch, BatchMemory& memory) const {
  if (counts_only(*device_)) {
    return;  // a dry run has no tokens
  }
  const int64_t length = settings_.length_of_rank();
  memory.chunks = deal_chunks(settings_, batch);
  std::vector<int32_t> tokens, targets, starts;
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t t = 0; t < length; ++t) {
      const int64_t position = memory.chunks.position(t, length, context_ranks_->rank());
      const auto from = static_cast<size_t>(row * batch.columns + position);
      tokens.push_back(batch.tokens[from]);
      targets.push_back(batch.targets[from]);
      const int64_t start = settings_.masks_documents ? batch.document_starts[from] : 0;
      starts.push_back(static_cast<int32_t>(t - position + start));
    }
  }
  copy_from_host(*device_, memory.tokens, tokens.data());
  copy_from_host(*device_, memory.targets, targets.data());
  copy_from_host(*device_, memory.row_starts, starts.data());
}

/// Returns the number of ranks with gradients of their own, divided by the targets of a step.
/// GradientBuckets divides by the ranks after all casts, so that no code depends on their number. A
/// batch that does not give the number of targets has one at each position.
float Engine::target_share(const Batch& batch) const {
  const int64_t positions = settings_.step.gradient_accumulation_steps * settings_.rows_of_rank();
  return batch.step_targets > 0 ? static_cast<float>(mesh().size(Group::state)) /
                                      static_cast<float>(batch.step_targets)
                                : 1.0F / static_cast<float>(positions);
}

void Engine::number_pass(const BatchMemory& memory, int64_t step_index, int64_t micro_batch) const {
  if (!memory.pass.empty()) {
    const int64_t of_ranks = step_index * settings_.step.gradient_accumulation_steps + micro_batch;
    const int64_t pass = of_ranks * mesh().size(Group::state) + mesh().index(Group::state);
    copy_from_host(*device_, memory.pass, &pass);
  }
}

void Engine::micro_batch(const Batch& batch, int64_t step_index, bool collect_statistics,
                         Position position) {
  const MicroBatchMemory memory = memory_of();
  upload(batch, memory.batch);
  micro_batch_ = position.first ? 0 : micro_batch_ + 1;
  number_pass(memory.batch, step_index, micro_batch_);
  enter_step(step_index);
  ScalingState& scaling = model_.scaling();
  scaling.read_windows();
  const FirstWindows windows = scaling.first_windows();
  const uint64_t due = scaling.due(step_index, position.last);
  StepContext how = context(memory, true, collect_statistics);
  how.overwrites_gradients = position.first || strategy_->exchanges_each();
  if ((position.last || strategy_->exchanges_each()) && position.trains) {
    how.listener = strategy_->begin_exchange(position.last);
  }
  const auto work = [&] {
    if (position.first) {
      const TraceSpan span(name_of(StepPart::start));
      clear_step();
    }
    model_.train_micro_batch(how, memory.batch.tokens, memory.batch.targets,
                             totals(kTrainingTotals), optimizer().loss_scale(), memory.batch.share);
    agree_on_amax();
    if (scaling.reduces(position.last)) {
      strategy_->combine_amax(device_->stream(), scaling.shared_amax());
    }
    scaling.update(device_->stream(), due, optimizer().squared_norm());
  };
  if (windows == FirstWindows::some) {
    work();  // there are many such sets of slots, each for a few steps
  } else {
    const bool warms_up = settings_.step.decoder.moe.warms_up(step_index);
    run(micro_batches_[{collect_statistics, position.first, plain_, warms_up, windows, due}], work);
  }
  scaling.note_update(due);
}

void Engine::end_step(bool collect_statistics) {
  strategy_->finish_exchange(optimizer().squared_norm());
  const TraceSpan span(name_of(StepPart::update));
  run(updates_[collect_statistics ? 1 : 0], [&] {
    step_optimizer(collect_statistics);
    balance_experts();
    strategy_->share_values();
    optimizer().receive(device_->stream(), scratch_, collect_statistics);
    strategy_->values_changed();
    model_.refresh_weights(context(memory_of(), true, collect_statistics), true);
    update_sum_scales();
  });
  store_loss();
}

void Engine::update_sum_scales() {
  for (const Group group : {Group::stage, Group::expert_state}) {
    const bool of_experts = group == Group::expert_state;
    const std::span<ops::AutoScale> own = model_.parameters().automatic_scales(of_experts);
    Communicator* const ranks = mesh().group(group);
    if (own.empty() || mesh().size(Group::stage) == 1) {
      continue;
    }
    const ArenaScope scope(scratch_);
    const auto n = static_cast<size_t>(mesh().size(group));
    auto* all = own.data();  // of a rank that shares its experts with none
    if (ranks != nullptr) {
      all = static_cast<ops::AutoScale*>(scratch_.allocate(n * own.size_bytes()));
      ranks->all_gather(device_->stream(), own.data(), all, own.size_bytes()).wait();
    }
    optimizer().update_sum_scales(device_->stream(), {all, n * own.size()}, own);
  }
}

void Engine::step_optimizer(bool collect_statistics) {
  RankCombiner* combiner = stage_ == nullptr ? strategy_->combiner() : &stage_->combiner;
  const StepContext how = context(memory_of(), true, collect_statistics);
  std::optional<TensorCombiner> over_tensor_ranks;
  if (tensor_ranks_ != nullptr) {
    const bool sums_stage = expert_ranks_ != nullptr && strategy_->combiner() != nullptr;
    combiner = &over_tensor_ranks.emplace(combiner, sums_stage, *tensor_ranks_, how);
  }
  optimizer().step(device_->stream(), scratch_, collect_statistics, combiner);
}

/// Copies the bits: a cast from fp32 to fp32 changes none.
void Engine::store_loss() {
  if (settings_.loss_history == 0) {
    return;
  }
  check(stored_losses_ < settings_.loss_history, "losses are taken before their memory is full");
  constexpr int64_t kWords = sizeof(Totals) / sizeof(float);
  Totals* entry = static_cast<Totals*>(loss_history_.data()) + stored_losses_;
  ops::cast(device_->stream(), {totals_.data(), DType::f32, {kWords}},
            {entry, DType::f32, {kWords}});
  ++stored_losses_;
}

std::vector<double> Engine::take_losses() {
  constexpr size_t kAtOnce = 64;  // values that a message between ranks has
  std::vector<Totals> own(static_cast<size_t>(stored_losses_));
  if (!own.empty()) {
    device_->copy_to_host(own.data(), loss_history_.data(), own.size() * sizeof(Totals));
  }
  stored_losses_ = 0;
  std::vector<double> losses;
  for (size_t begin = 0; begin < own.size(); begin += kAtOnce) {
    std::array<Totals, kAtOnce> part = {};
    const size_t count = std::min(kAtOnce, own.size() - begin);
    std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(begin), count, part.begin());
    const std::vector<std::array<Totals, kAtOnce>> of_ranks = mesh().gather_values(part);
    for (size_t i = 0; i < count; ++i) {
      Totals all = {};
      for (const auto& of_rank : of_ranks) {
        all.sum += of_rank[i].sum;
        all.count += of_rank[i].count;
      }
      losses.push_back(all.count == 0 ? 0.0 : all.sum / static_cast<double>(all.count));
    }
  }
  return losses;
}

/// A micro-batch forward, without gradients.
void Engine::run_batch(const Batch& batch, ActivationWatch* watch) {
  const MicroBatchMemory memory = memory_of();
  upload(batch, memory.batch);
  if (stage_ != nullptr) {
    return evaluate_parts(watch);
  }
  StepContext how = context(memory, false, false);
  how.watch = watch;
  model_.evaluate(how, {.tokens = memory.batch.tokens, .targets = memory.batch.targets},
                  totals(kEvaluationTotals));
}

void Engine::watch_forward(const Batch& batch, ActivationWatch& watch) {
  run_batch(batch, &watch);
}

void Engine::begin_evaluation() {
  clear_totals(kEvaluationTotals);
  if (const View loads = model_.evaluation_loads(); !loads.empty()) {
    device_->fill_zero(loads.data, loads.bytes());
  }
}

void Engine::evaluate(const Batch& batch) {
  // Rows behind the last sample have no targets.
  const auto target = std::find_if(batch.targets.rbegin(), batch.targets.rend(),
                                   [](int32_t id) { return id != kIgnoredTarget; });
  const int64_t rows = batch.targets.empty()
                           ? batch.rows
                           : ceil_div<int64_t>(batch.targets.rend() - target, batch.columns);
  counted_rows_ = rows * batch.columns / settings_.strategy.layout.context;
  if (batch.rows == settings_.step.micro_batch_size && batch.columns == settings_.step.seq_length) {
    run_batch(batch, nullptr);
  } else {
    evaluate_smaller(batch, nullptr);
  }
  counted_rows_ = 0;
}

LossReport Engine::evaluation_loss() {
  if (stage_ != nullptr) {
    stage_->messages.finish();
  }
  LossReport report = read_totals(kEvaluationTotals);
  report.dropped = settings_.model.moe.experts > 0 ? evaluation_drops() : 0.0;
  return report;
}

/// `losses`: device memory for the loss of each target, or null.
void Engine::evaluate_smaller(const Batch& batch, float* losses) {
  check(batch.rows <= settings_.step.micro_batch_size && batch.columns <= settings_.step.seq_length,
        "a batch fits into the shape that the engine was built for");
  check(stage_ == nullptr && tensor_ranks_ == nullptr && context_ranks_ == nullptr &&
            expert_ranks_ == nullptr && !settings_.masks_documents,
        "ranks that have parts of a model or of sequences evaluate whole batches");
  const MicroBatchMemory memory = memory_of();
  const Shape shape = {batch.rows, batch.columns};
  const View tokens{memory.batch.tokens.view().data, DType::i32, shape};
  const View targets{memory.batch.targets.view().data, DType::i32, shape};
  copy_from_host(*device_, tokens, batch.tokens.data());
  copy_from_host(*device_, targets, batch.targets.data());
  LossTotals losses_and_totals = totals(kEvaluationTotals);
  losses_and_totals.of_targets = losses;
  model_.evaluate(context(memory, false, false), {.tokens = tokens, .targets = targets},
                  losses_and_totals);
}

std::vector<float> Engine::target_losses(const Batch& batch) {
  const Tensor losses(*device_, DType::f32, {batch.rows * batch.columns}, MemoryCategory::batch);
  evaluate_smaller(batch, losses.view().as<float>());
  std::vector<float> result(static_cast<size_t>(batch.rows * batch.columns));
  copy_to_host(*device_, result.data(), losses);
  return result;
}

template <typename Work>
void Engine::run(RepeatedWork& repeated, const Work& work) {
  if (settings_.step.cuda_graphs) {
    repeated.run(*device_, work);
  } else {
    work();
  }
}

void Engine::calibrate(const Batch& batch) {
  if (stage_ != nullptr) {
    run_stage(stage_->calibration, [&](BatchMemory& memory) { upload(batch, memory); },
              {.trains = false});
  } else {
    micro_batch(batch, 0, false, {.first = true, .last = true, .trains = false});
  }
  weights_changed();
}

LossReport Engine::step_loss(const SectionSeconds& seconds,
                             std::vector<SectionSeconds>* of_ranks) const {
  return read_totals(kTrainingTotals, seconds, of_ranks);
}

}  // namespace fp8train
