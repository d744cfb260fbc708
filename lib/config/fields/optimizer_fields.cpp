// The optimizer and the learning rate over the steps.

#include <algorithm>

#include "base/text.h"
#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "config/model_folder.h"
#include "optim/registry.h"
#include "optim/schedule.h"

namespace fp8train {
namespace {

using namespace fields;

/// The steps of training.max_epochs are known once the data has been read.
std::string offered_warmup(const Settings& settings) {
  constexpr int64_t kWithoutLength = 100;
  return std::to_string(planned_steps(settings) > 0 ? usual_warmup(settings) : kWithoutLength);
}

template <class Entry>
std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    names.emplace_back(entry.name);
  }
  return names;
}

/// Keys of other optimizers than this one.
void check_optimizer(const CheckContext& at) {
  const OptimizerEntry& entry = optimizer_named(at.settings.optimizer.name);
  for (const std::string_view key : optimizer_keys()) {
    if (!entry.reads(key)) {
      CheckContext{*find_field(key), at.settings, at.given, at.extent}.without_meaning(
          fmt::format("optimizer.name: {}", entry.name));
    }
  }
}

/// Whether the schedule reads the key; if not, the key must not be given.
bool check_read_by_schedule(const CheckContext& at) {
  const ScheduleEntry& schedule = schedule_named(at.settings.scheduler.type);
  if (!schedule.reads(at.field.key)) {
    at.without_meaning(fmt::format("scheduler.type: {}", schedule.name));
    return false;
  }
  return true;
}

void check_min_lr(const CheckContext& at) {
  const double least = at.settings.scheduler.min_lr;
  const double peak = at.settings.optimizer.lr;
  if (check_read_by_schedule(at) && at.usable("scheduler.type") && at.usable("optimizer.lr") &&
      least > peak) {
    at.complain("optimizer.lr",
                fmt::format("scheduler.min_lr {} is above optimizer.lr {}", least, peak));
  }
}

/// Steps of a run that is planned; else 0: a run that ends early is not a mistake (open_session
/// warns).
int64_t steps_to_fill(const CheckContext& at) {
  const bool comparable = at.usable("training.micro_batch_size") && at.usable("data.seq_length") &&
                          at.usable("training.gradient_accumulation_steps");
  return comparable && at.extent == Extent::begun ? planned_steps(at.settings) : 0;
}

void check_warmup_steps(const CheckContext& at) {
  const int64_t steps = steps_to_fill(at);
  const int64_t warmup = at.settings.scheduler.warmup_steps;
  if (steps > 0 && warmup >= steps) {
    at.complain("training.max_steps",
                fmt::format("the warm-up of {} does not end before the run's {}",
                            counted(warmup, "step"), counted(steps, "step")));
  }
}

void check_decay_steps(const CheckContext& at) {
  const ScheduleSettings& schedule = at.settings.scheduler;
  const int64_t steps = steps_to_fill(at);
  check_read_by_schedule(at);
  if (steps > schedule.warmup_steps && schedule.decay_steps > steps - schedule.warmup_steps) {
    at.complain("training.max_steps",
                fmt::format("warm-up ({}) and decay ({}) together are longer than the run's {}",
                            schedule.warmup_steps, schedule.decay_steps, counted(steps, "step")));
  }
  const auto lacks = schedule_named(schedule.type).lacks;
  const char* const why = lacks == nullptr ? nullptr : lacks(schedule);
  if (why != nullptr && at.usable("scheduler.decay_steps")) {
    at.missing(why);
  }
}

void check_offload(const CheckContext& at) {
  const Settings& settings = at.settings;
  if (!settings.step.decoder.offloads_saved) {
    return;
  }
  if (settings.parallelism.layout.pipeline > 1) {
    at.complain("has no implementation for parallelism.pipeline above 1; take model.recompute");
  } else if (settings.step.decoder.recompute == Recompute::block) {
    at.complain("has no meaning with model.recompute: block, which stores none of them");
  }
}

}  // namespace

/// Keys that only Muon reads.
std::vector<Field> muon_fields() {
  const auto muon = under(&Settings::optimizer, &OptimizerSettings::muon);
  std::vector<Field> fields = {
      field("optimizer.muon.momentum", muon(&MuonSettings::momentum), from_up_to(0, 1),
            "Momentum for the weights of hidden linear layers; AdamW updates all others"),
      field("optimizer.muon.nesterov", muon(&MuonSettings::nesterov), "Nesterov's momentum"),
      field("optimizer.muon.ns_steps", muon(&MuonSettings::ns_steps), between(1, 20),
            "Steps of the Newton-Schulz iteration that orthogonalizes an update"),
      choice("optimizer.muon.scale", muon(&MuonSettings::scale), kMuonScales,
             "Factor of an orthogonalized update of [rows, columns]. original: "
             "max(1, rows / columns)^0.5; match_rms_adamw: 0.2 max(rows, columns)^0.5, for AdamW's "
             "learning rate and weight decay"),
      field("optimizer.muon.lr_factor", muon(&MuonSettings::lr_factor), above(0),
            "Learning rate of these weights divided by optimizer.lr"),
  };
  for (Field& field : fields) {
    field.applies = [key = field.key](const Settings& settings) {
      return optimizer_named(settings.optimizer.name).reads(key);
    };
  }
  return fields;
}

std::vector<Field> schedule_fields() {
  const auto scheduler = under(&Settings::scheduler);
  return {
      choice("scheduler.type", scheduler(&ScheduleSettings::type), names_of(schedules()),
             "Shape of the schedule after warm-up; wsd: warm-up, stable, decay"),
      field("scheduler.warmup_steps", scheduler(&ScheduleSettings::warmup_steps), at_least(0),
            "Steps in which the learning rate rises linearly from 0. If neither this key nor "
            "optimizer.lr is given with model.from: 3 % of the steps")
          .asked({.topic = Topic::optimization, .text = "Warm-up steps", .suggest = offered_warmup})
          .checked(check_warmup_steps),
      field("scheduler.min_lr", scheduler(&ScheduleSettings::min_lr), at_least(0),
            "Learning rate at the end of the decay")
          .checked(check_min_lr),
      field("scheduler.decay_steps", scheduler(&ScheduleSettings::decay_steps), at_least(0),
            "wsd: length of the final decay; cosine, linear: 0 decays until the last step")
          .checked(check_decay_steps),
  };
}

std::vector<Field> optimizer_fields() {
  const auto optimizer = under(&Settings::optimizer);
  return {
      field("offload.optimizer", optimizer(&OptimizerSettings::offloads),
            "Moments, and master weights that no GEMM reads, are in pinned memory of the host; the "
            "update reads and writes them through the GPU's link. No bit changes"),
      field("offload.activations",
            in(&Settings::step, &StepSettings::decoder, &DecoderSettings::offloads_saved),
            "Activations that blocks store for backward are in pinned memory of the host until "
            "then; the GPU has those of two blocks. No bit changes")
          .checked(check_offload),
      choice("optimizer.name", optimizer(&OptimizerSettings::name), names_of(optimizers()),
             "Update rule; muon updates the weights of hidden linear layers, and adamw all others")
          .checked(check_optimizer),
      field("optimizer.lr", optimizer(&OptimizerSettings::lr), above(0),
            "Peak learning rate. If it is not given with model.from: 1e-5, since that model is "
            "trained already")
          .asked({.topic = Topic::optimization,
                  .text = "Peak learning rate",
                  .suggest = [](const Settings& s) { return number_text(usual_rate(s)); }}),
      field("optimizer.betas", optimizer(&OptimizerSettings::betas),
            {.range = from_up_to(0, 1), .accepts = "a list of 2 numbers in [0, 1)", .count = 2},
            "Decay of the first and second moment"),
      field("optimizer.eps", optimizer(&OptimizerSettings::eps), above_up_to(0, 1),
            "Added to the root of AdamW's second moment"),
      field("optimizer.weight_decay", optimizer(&OptimizerSettings::weight_decay), between(0, 1000),
            "Decoupled weight decay, never on norms and biases"),
      field("optimizer.momentum", optimizer(&OptimizerSettings::momentum), from_up_to(0, 1),
            "Momentum of sgd"),
      field("optimizer.grad_clip", optimizer(&OptimizerSettings::grad_clip), between(0, 1e9),
            "Largest global gradient norm; 0 turns clipping off"),
  };
}

}  // namespace fp8train
