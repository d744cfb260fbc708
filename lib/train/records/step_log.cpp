#include "train/records/step_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/flight_recorder.h"
#include "base/log.h"
#include "model/model_config.h"
#include "optim/schedule.h"
#include "train/records/run_statistics.h"
#include "train/watch/divergence.h"

namespace fp8train {
StepLog::StepLog(const Session& session, Device& device, const Topology& ranks, RunRecords& records,
                 RunListener& listener, bool leads)
    : session_(&session),
      device_(&device),
      records_(&records),
      listener_(&listener),
      limits_(device.kind(), device.traits(),
              device.kind() == DeviceKind::cuda ? gpu_kind_in(device.description()) : nullptr,
              ranks) {
  if (leads && device.kind() == DeviceKind::cuda) {
    monitor_.emplace();
  }
  if (session.data.train.is_blend()) {
    blend_.emplace(training_samples(session));
  }
}

std::vector<std::pair<std::string, double>> StepLog::epochs_of_sources(uint64_t samples) const {
  std::vector<std::pair<std::string, double>> result;
  const std::vector<double> epochs = blend_ ? blend_->epochs(samples) : std::vector<double>();
  for (size_t i = 0; i < epochs.size(); ++i) {
    const std::vector<CorpusSource>& sources = session_->data.train.sources();
    const auto same = std::count_if(sources.begin(), sources.begin() + static_cast<int64_t>(i),
                                    [&](const auto& one) { return one.path == sources[i].path; });
    result.emplace_back(
        same == 0 ? sources[i].path : fmt::format("{}#{}", sources[i].path, same + 1), epochs[i]);
  }
  return result;
}

void StepLog::begin_at(int64_t step) {
  logged_step_ = step;
  restart_time();
}

void StepLog::predict(const Engine& engine) {
  if (engine.mesh().leads()) {
    limits_.predict(engine.settings());
  }
}

void StepLog::restart_time() {
  since_log_.restart();
  seconds_left_out_ = 0;
}

/// A function of the step alone, so that a resumed run writes the same lines.
bool StepLog::tensors_are_due(int64_t step) const {
  const LoggingSettings& logging = session_->settings.logging;
  const int64_t interval = logging.tensor_interval;
  return interval > 0 &&
         (step == session_->max_steps ||
          step / interval != std::max<int64_t>(step - logging.interval, 0) / interval);
}

namespace {

/// Returns the share of `seconds` in which each stage has waited: the mean of its ranks.
std::vector<double> idle_of_stages(const StageWaits& waits, double seconds) {
  std::vector<double> idle(waits.seconds.empty() ? 0 : waits.planned.size());
  const size_t of_stage = idle.empty() ? 1 : waits.seconds.size() / idle.size();
  for (size_t rank = 0; rank < waits.seconds.size(); ++rank) {
    idle[rank / of_stage] += waits.seconds[rank] / static_cast<double>(of_stage) / seconds;
  }
  return idle;
}

/// Returns nothing for a model without experts.
std::optional<ExpertLoads> loads_of(Engine& engine, int64_t step) {
  const EngineSettings& settings = engine.settings();
  if (settings.model.moe.experts == 0) {
    return std::nullopt;
  }
  ExpertLoads loads = engine.expert_loads();
  check_dropped(step, loads, settings.step.decoder.moe);
  return loads;
}

/// Without slots of weights of which only other ranks have parts: nothing has been seen of them.
std::vector<SlotReport> slots_of(Engine& engine) {
  std::vector<SlotReport> slots = engine.slot_reports();
  if (engine.plain()) {
    slots.clear();  // they are of the last scaled step
  }
  std::erase_if(slots, [](const SlotReport& slot) { return slot.statistics.count == 0; });
  return slots;
}

struct Shares {
  std::optional<double> mfu, speed_of_light;
};

/// Of the steps from `first` to `end`, which took `seconds`, with `tflops` of the model per second
/// and rank. Ranks that do not lead record nothing. Steps without scales, those of a warm-up
/// of capacities and those of dropless experts are others than the dry run's.
Shares shares_of(SpeedLimits& limits, const Engine& engine, const std::vector<double>& idle,
                 double tflops, std::pair<int64_t, int64_t> steps, double seconds) {
  limits.measure(engine.settings().plan.activation, seconds, 1e12 * tflops);
  const std::optional<double> rate = limits.flops_per_second();
  if (!rate || !engine.mesh().leads()) {
    return {};
  }
  Shares shares = {1e12 * tflops / *rate, {}};
  const EngineSettings& settings = engine.settings();
  bool as_predicted = !settings.step.decoder.moe.dropless;
  for (int64_t step = steps.first; step < steps.second; ++step) {
    as_predicted =
        as_predicted && !settings.is_plain(step) && !settings.step.decoder.moe.warms_up(step);
  }
  if (as_predicted) {
    shares.speed_of_light = *limits.step_seconds(engine.settings(), idle) *
                            static_cast<double>(steps.second - steps.first) / seconds;
  }
  return shares;
}

}  // namespace

void StepLog::write(Engine& engine, TrainingState& state, const Traffic& sent) {
  FlightRecorder* const recorder = flight_recorder();
  std::vector<SectionSeconds> seconds_of_ranks;
  const LossReport loss = engine.step_loss(
      recorder != nullptr ? recorder->take_seconds() : SectionSeconds(), &seconds_of_ranks);
  const ops::StepControl control = engine.optimizer().control();
  const std::optional<ExpertLoads> experts = loads_of(engine, state.step);
  const StageWaits waits = engine.take_stage_waits();
  const double seconds = since_log_.seconds() - seconds_left_out_;
  const auto steps = static_cast<double>(state.step - logged_step_);
  tokens_per_second_ = steps * static_cast<double>(session_->tokens_per_step()) / seconds;
  const double tflops = tokens_per_second_ / engine.mesh().world_size() * 1e-12 *
                        flops_per_token(session_->engine.model, session_->engine.step.seq_length);
  const Shares shares =
      shares_of(limits_, engine, waits.planned, tflops, {logged_step_, state.step}, seconds);
  state.loss = loss.mean;
  const std::vector<SlotReport> slots = slots_of(engine);
  const ScalingSummary scaling = summarize(slots);
  const Settings& settings = session_->settings;
  const double lr =
      learning_rate(settings.scheduler, settings.optimizer.lr, state.step - 1, session_->max_steps);
  const StepMetrics metrics = {
      .step = state.step,
      .max_steps = session_->max_steps,
      .loss = loss.mean,
      .z_loss =
          session_->engine.step.decoder.z_loss != 0 ? std::optional(loss.z_loss) : std::nullopt,
      .experts = experts,
      .lr = lr,
      .gradient_norm = control.gradient_norm,
      .tokens = state.tokens,
      .epochs = epochs_of_sources(state.sample_position),
      .tokens_per_second = tokens_per_second_,
      .seconds_per_step = seconds / steps,
      .tflops = tflops,
      .mfu = shares.mfu,
      .speed_of_light = shares.speed_of_light,
      .memory_bytes = device_->ledger().peak(),
      .data_position = state.sample_position,
      .loss_scale = session_->engine.plan.dynamic_loss_scaling
                        ? std::optional<double>(control.loss_scale)
                        : std::nullopt,
      .skipped_steps = control.skipped_steps,
      .gpu = gpu_,
      .straggler = find_straggler(seconds_of_ranks),
      .stage_idle = idle_of_stages(waits, seconds),
      .planned_stage_idle = waits.planned,
      .sent = engine.mesh().world_size() > 1 ? std::optional<Traffic>(sent) : std::nullopt,
      .scaling = slots.empty() ? nullptr : &scaling,
      .slots = &slots,
      .each_tensor = tensors_are_due(state.step)};
  listener_->measured(metrics);
  records_->write_step(metrics);
  log_warnings(scaling_warnings_.after_step(state.step, slots));
  begin_at(state.step);
}

void StepLog::warn_at_end() {
  log_warnings(scaling_warnings_.rest());
}

}  // namespace fp8train
