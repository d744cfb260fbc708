// The optimizer and the learning rate over the steps.

#include <algorithm>

#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

using namespace fields;

template <class Member>
auto optimizer(Member member) {
  return in(&Settings::optimizer, member);
}

Field betas() {
  const Range range = from_up_to(0, 1);
  return make(
      "optimizer.betas", "a list of 2 numbers" + range.text(),
      "Decay of the first and second moment", optimizer(&OptimizerSettings::betas),
      [range](const FieldValue& value, const std::string& what) {
        const auto numbers = read_numbers(value, 2, range, what);
        return numbers ? std::optional(std::array<double, 2>{(*numbers)[0], (*numbers)[1]})
                       : std::nullopt;
      },
      [](const std::array<double, 2>& value) {
        return fmt::format("[{}, {}]", number_text(value[0]), number_text(value[1]));
      });
}

std::string offered_warmup(const Settings& settings) {
  return std::to_string(std::min<int64_t>(planned_steps(settings) / 20, 2000));
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerEntry& entry : optimizers()) {
    names.emplace_back(entry.name);
  }
  return names;
}

}  // namespace

/// Keys that only Muon reads.
std::vector<Field> muon_fields() {
  const auto muon = [](auto member) {
    return in(&Settings::optimizer, &OptimizerSettings::muon, member);
  };
  std::vector<Field> fields = {
      number("optimizer.muon.momentum", muon(&MuonSettings::momentum), from_up_to(0, 1),
             "Momentum for the weights of hidden linear layers; AdamW updates all others"),
      flag("optimizer.muon.nesterov", muon(&MuonSettings::nesterov), "Nesterov's momentum"),
      integer("optimizer.muon.ns_steps", muon(&MuonSettings::ns_steps), between(1, 20),
              "Steps of the Newton-Schulz iteration that orthogonalizes an update"),
      choice("optimizer.muon.scale", muon(&MuonSettings::scale), kMuonScales,
             "Factor of an orthogonalized update of [rows, columns]. original: "
             "max(1, rows / columns)^0.5; match_rms_adamw: 0.2 max(rows, columns)^0.5, for AdamW's "
             "learning rate and weight decay"),
      number("optimizer.muon.lr_factor", muon(&MuonSettings::lr_factor), above(0),
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
  return {
      choice("scheduler.type", in(&Settings::scheduler, &ScheduleSettings::type), kScheduleTypes,
             "Shape of the schedule after warm-up; wsd: warm-up, stable, decay"),
      integer("scheduler.warmup_steps", in(&Settings::scheduler, &ScheduleSettings::warmup_steps),
              at_least(0), "Steps in which the learning rate rises linearly from 0")
          .asked(
              {.topic = Topic::optimization, .text = "Warm-up steps", .suggest = offered_warmup}),
      number("scheduler.min_lr", in(&Settings::scheduler, &ScheduleSettings::min_lr), at_least(0),
             "Learning rate at the end of the decay"),
      integer("scheduler.decay_steps", in(&Settings::scheduler, &ScheduleSettings::decay_steps),
              at_least(0),
              "wsd: length of the final decay; cosine, linear: 0 decays until the last step"),
  };
}

std::vector<Field> optimizer_fields() {
  return {
      choice("optimizer.name", optimizer(&OptimizerSettings::name), optimizer_names(),
             "Update rule; muon updates the weights of hidden linear layers, and adamw all others"),
      number("optimizer.lr", optimizer(&OptimizerSettings::lr), above(0), "Peak learning rate")
          .asked({.topic = Topic::optimization, .text = "Peak learning rate"}),
      betas(),
      number("optimizer.eps", optimizer(&OptimizerSettings::eps), above_up_to(0, 1),
             "Added to the root of AdamW's second moment"),
      number("optimizer.weight_decay", optimizer(&OptimizerSettings::weight_decay),
             between(0, 1000), "Decoupled weight decay, never on norms and biases"),
      number("optimizer.momentum", optimizer(&OptimizerSettings::momentum), from_up_to(0, 1),
             "Momentum of sgd"),
      number("optimizer.grad_clip", optimizer(&OptimizerSettings::grad_clip), between(0, 1e9),
             "Largest global gradient norm; 0 turns clipping off"),
  };
}

}  // namespace fp8train
