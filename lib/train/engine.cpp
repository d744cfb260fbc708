#include "train/engine.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/trace.h"
#include "comm/reduce.h"
#include "ops/pointwise/elementwise.h"
#include "parallel/shard_layout.h"

namespace fp8train {
namespace {

constexpr int kTrainingTotals = 0;
constexpr int kEvaluationTotals = 1;

DecoderOptions decoder_options(const EngineSettings& settings, const Communicator* comm) {
  DecoderOptions options = settings.decoder;
  options.gradients = settings.trains;
  options.exchanged = comm != nullptr && comm->size() > 1;
  if (comm != nullptr && comm->size() > 1 && settings.trains && settings.zero_stage > 0) {
    const ShardSettings shards = {.stage = settings.zero_stage,
                                  .bucket_bytes = settings.bucket_bytes,
                                  .accumulates = settings.gradient_accumulation_steps > 1,
                                  .last_reads_first = settings.model.tie_word_embeddings};
    options.layout = [shards, comm](const ParameterStore& store) {
      return shard_layout(store, comm->size(), comm->rank(), shards);
    };
  }
  return options;
}

}  // namespace

Engine::Engine(Device& device, const EngineSettings& settings, Communicator* comm)
    : device_(&device),
      comm_(comm != nullptr && comm->size() > 1 ? comm : nullptr),
      settings_(settings),
      model_(device, settings.model, settings.plan, decoder_options(settings, comm)),
      saved_(device, MemoryCategory::saved_activations),
      scratch_(device, MemoryCategory::workspace),
      tokens_(device, DType::i32, {settings.micro_batch_size, settings.seq_length},
              MemoryCategory::batch),
      targets_(device, DType::i32, {settings.micro_batch_size, settings.seq_length},
               MemoryCategory::batch),
      totals_(device, 2 * sizeof(Totals), MemoryCategory::batch) {
  if (settings.loss_history > 0) {
    loss_history_ = Buffer(device, static_cast<size_t>(settings.loss_history) * sizeof(Totals),
                           MemoryCategory::batch);
  }
  if (settings.trains) {
    optimizer_.emplace(device, model_.parameters(), settings.optimizer,
                       settings.plan.dynamic_loss_scaling, settings.seed);
    optimizer_->set_rounds_gradients(comm_ == nullptr && !settings.plan.self_exact);
  }
  if (comm_ != nullptr) {
    settings_.record = false;  // what a rank says to another cannot be replayed
    const size_t scales = 2 * sizeof(float) * model_.parameters().all().size();
    const View automatic = model_.parameters().automatic_scales();
    const size_t few = std::max(
        {model_.scaling().amax().bytes(), scales, automatic.empty() ? 0 : automatic.bytes()});
    const size_t bytes =
        std::max(few * static_cast<size_t>(ranks()), model_.parameters().granule_amax().bytes());
    combined_ = Buffer(device, bytes, MemoryCategory::communication);
    model_.parameters().scale_sums();
    if (settings.trains && settings.zero_stage > 0) {
      zero_.emplace(*comm_, device, model_.parameters(),
                    ZeroParallel::Settings{.bucket_bytes = settings.bucket_bytes,
                                           .self_exact = settings.plan.self_exact,
                                           .combine_scratch = combined_.data()});
    } else if (settings.trains) {
      parallel_.emplace(*comm_, device, model_.parameters(),
                        DataParallelSettings{.bucket_bytes = settings.bucket_bytes,
                                             .self_exact = settings.plan.self_exact});
    }
  }
  device.fill_zero(totals_.data(), totals_.bytes());
}

void Engine::reserve(const StepPlan& plan) {
  saved_.reserve(plan.saved_bytes);
  scratch_.reserve(plan.scratch_bytes);
}

StepContext Engine::context(bool training, bool collect_statistics) {
  return {.device = device_,
          .stream = device_->stream(),
          .saved = &saved_,
          .scratch = &scratch_,
          .training = training,
          .plain = plain_,
          .first_window = model_.scaling().first_window(),
          .collect_statistics = collect_statistics,
          .deterministic = settings_.deterministic,
          .gatherer = gatherer()};
}

void Engine::weights_changed() {
  if (zero_) {
    zero_->values_changed();
  }
  model_.refresh_weights(context(true, false), false);
}

void Engine::copy_values(const std::function<float*(const Parameter&)>& memory) {
  const ParameterStore& store = model_.parameters();
  const std::vector<size_t> begins = store.unit_begins();
  for (size_t unit = 0; unit + 1 < begins.size(); ++unit) {
    const std::vector<std::vector<float>> gathered =
        zero_ ? zero_->unit_values(unit) : std::vector<std::vector<float>>();
    for (size_t i = begins[unit]; i < begins[unit + 1]; ++i) {
      float* to = memory(*store.all()[i]);
      if (to != nullptr && zero_) {
        std::copy(gathered[i - begins[unit]].begin(), gathered[i - begins[unit]].end(), to);
      } else if (to != nullptr) {
        value_to_host(*device_, *store.all()[i], to);
      }
    }
  }
}

void Engine::for_each_replica(
    const std::function<void(const std::string&, const StoredTensor&)>& use) {
  const ParameterStore& store = model_.parameters();
  if (!zero_) {
    for (const auto& parameter : store.all()) {
      use(parameter->name, parameter->stored_value);
    }
    return;
  }
  const std::vector<StoreLayout::Segment>& segments = store.layout()->segments;
  for (size_t unit = 0; unit < store.layout()->turns.size(); ++unit) {
    zero_->gather(unit, ParameterGatherer::kNone);
    for (size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].unit == unit) {
        use(store.all()[segments[i].parameters.front()]->name, store.gathered_whole(i));
      }
    }
  }
  zero_->values_changed();
}

LossTotals Engine::totals(int slot) const {
  Totals* entry = static_cast<Totals*>(totals_.data()) + slot;
  return {&entry->sum, &entry->count};
}

void Engine::clear_totals(int slot) {
  device_->fill_zero(static_cast<Totals*>(totals_.data()) + slot, sizeof(Totals));
}

/// What else ranks have to tell each other goes with their totals.
LossReport Engine::read_totals(int slot, const SectionSeconds& seconds,
                               std::vector<SectionSeconds>* of_ranks) const {
  struct Message {
    Totals totals;
    SectionSeconds seconds;
  };
  Totals read = {};
  device_->copy_to_host(&read, static_cast<Totals*>(totals_.data()) + slot, sizeof(read));
  if (comm_ != nullptr) {
    Totals all = {};
    for (const Message& of_rank : comm_->all_gather_values(Message{read, seconds})) {
      all.sum += of_rank.totals.sum;
      all.count += of_rank.totals.count;
      if (of_ranks != nullptr) {
        of_ranks->push_back(of_rank.seconds);
      }
    }
    read = all;
  }
  return {read.count == 0 ? 0.0 : read.sum / static_cast<double>(read.count), read.count};
}

void Engine::upload(const Batch& batch) {
  check(batch.rows == settings_.micro_batch_size && batch.columns == settings_.seq_length,
        "a batch has the shape that the engine was built for");
  copy_from_host(*device_, tokens_, batch.tokens.data());
  copy_from_host(*device_, targets_, batch.targets.data());
}

void Engine::begin_step() {
  clear_totals(kTrainingTotals);
  optimizer().begin_step(device_->stream());
}

/// Few values of each rank become one.
void Engine::combine(const View& values, ops::Combine how) {
  if (comm_ != nullptr && values.count() > 0) {
    all_combine(*comm_, device_->stream(), values, how, combined_.data());
  }
}

void Engine::sum(double* value) {
  combine({value, DType::f64, {1}}, ops::Combine::sum);
}

void Engine::largest(const View& values) {
  combine(values, ops::Combine::max);
}

void Engine::enter_step(int64_t step_index) {
  plain_ = std::any_of(
      settings_.plain_steps.begin(), settings_.plain_steps.end(),
      [&](const auto& range) { return step_index >= range.first && step_index < range.second; });
}

void Engine::micro_batch(const Batch& batch, int64_t step_index, bool collect_statistics,
                         Position position) {
  upload(batch);
  const auto targets = static_cast<float>(settings_.gradient_accumulation_steps * batch.rows *
                                          batch.columns * ranks());
  model_.scaling().set_steps_done(step_index);
  enter_step(step_index);
  const uint64_t due = model_.scaling().due(step_index, position.last);
  StepContext how = context(true, collect_statistics);
  how.overwrites_gradients = position.first;
  const bool exchanges = position.last && position.trains;
  if (exchanges && parallel_) {
    parallel_->begin(device_->stream());
    how.listener = &*parallel_;
  } else if (exchanges && zero_) {
    zero_->begin();
    how.listener = &*zero_;
  }
  run(micro_batches_[{collect_statistics, how.first_window, position.first, plain_, due}], [&] {
    model_.train_micro_batch(how, tokens_, targets_, totals(kTrainingTotals),
                             optimizer().loss_scale(), 1.0F / targets);
    if (model_.scaling().reduces(position.last)) {
      combine(model_.scaling().shared_amax(), ops::Combine::max);
    }
    model_.scaling().update(device_->stream(), due, optimizer().squared_norm());
  });
}

void Engine::end_step(bool collect_statistics) {
  if (parallel_) {
    parallel_->finish();
    // NaN where a rank has seen a value that is not finite: all skip the step or none.
    sum(optimizer().squared_norm());
  } else if (zero_) {
    zero_->finish();
  }
  const TraceSpan span("update");
  run(updates_[collect_statistics ? 1 : 0], [&] {
    optimizer().step(device_->stream(), scratch_, collect_statistics, zero_ ? this : nullptr);
    if (zero_) {
      zero_->values_changed();
    }
    model_.refresh_weights(context(true, collect_statistics), true);
    update_sum_scales();
  });
  store_loss();
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
    const std::vector<std::array<Totals, kAtOnce>> of_ranks =
        comm_ == nullptr ? std::vector{part} : comm_->all_gather_values(part);
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

void Engine::watch_forward(const Batch& batch, ActivationWatch& watch) {
  upload(batch);
  StepContext how = context(false, false);
  how.watch = &watch;
  model_.evaluate(how, tokens_, targets_, totals(kEvaluationTotals));
}

/// Each rank has counted what is at the maximum of its shards.
void Engine::update_sum_scales() {
  const View own = model_.parameters().automatic_scales();
  if (comm_ == nullptr || own.empty()) {
    return;
  }
  const Stream stream = device_->stream();
  comm_->all_gather(stream, own.data, combined_.data(), own.bytes()).wait();
  optimizer().update_sum_scales(stream, {combined_.data(), DType::i64, {ranks(), own.count()}});
}

template <typename Work>
void Engine::run(RepeatedWork& repeated, const Work& work) {
  if (settings_.record) {
    repeated.run(*device_, work);
  } else {
    work();
  }
}

void Engine::calibrate(const Batch& batch) {
  begin_step();
  micro_batch(batch, 0, false, {.first = true, .last = true, .trains = false});
  weights_changed();
}

LossReport Engine::step_loss() const {
  return read_totals(kTrainingTotals);
}

LossReport Engine::step_loss(const SectionSeconds& seconds,
                             std::vector<SectionSeconds>& of_ranks) const {
  return read_totals(kTrainingTotals, seconds, &of_ranks);
}

void Engine::begin_evaluation() {
  clear_totals(kEvaluationTotals);
}

void Engine::evaluate(const Batch& batch) {
  upload(batch);
  model_.evaluate(context(false, false), tokens_, targets_, totals(kEvaluationTotals));
}

LossReport Engine::evaluation_loss() const {
  return read_totals(kEvaluationTotals);
}

}  // namespace fp8train
