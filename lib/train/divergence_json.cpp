#include "train/divergence_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "io/json_number.h"

namespace fp8train {
namespace {

bool is_possible(const Rollback& one) {
  return one.to_step >= 0 && one.to_step < one.from_step && one.first_sample <= one.end_sample;
}

}  // namespace

void add_divergence(nlohmann::ordered_json& json, const TrainingState& state) {
  json["is_scheduled"] = state.is_scheduled;
  // Only a stop leaves these.
  if (state.save_is_due) {
    json["save_is_due"] = true;
  }
  if (state.unseen_skips > 0) {
    json["unseen_skips"] = state.unseen_skips;
  }
  if (state.checked_step != state.step) {
    json["checked_step"] = state.checked_step;
  }
  json["rollbacks"] = nlohmann::ordered_json::array();
  for (const Rollback& one : state.rollbacks) {
    json["rollbacks"].push_back({{"from_step", one.from_step},
                                 {"to_step", one.to_step},
                                 {"first_sample", one.first_sample},
                                 {"end_sample", one.end_sample},
                                 {"kind", one.kind}});
  }
  if (!state.spikes.losses.empty()) {
    json["recent_losses"] = state.spikes.losses;
    json["high_steps"] = state.spikes.high_steps;
    json["first_high"] = state.spikes.first_high;
  }
}

void read_divergence(const nlohmann::json& json, const std::string& where, TrainingState& state) {
  for (const nlohmann::json& one : json.value("rollbacks", nlohmann::json::array())) {
    state.rollbacks.push_back({.from_step = whole_number<int64_t>(one, "from_step", where),
                               .to_step = whole_number<int64_t>(one, "to_step", where),
                               .first_sample = whole_number<uint64_t>(one, "first_sample", where),
                               .end_sample = whole_number<uint64_t>(one, "end_sample", where),
                               .kind = one.at("kind").get<std::string>()});
    if (!is_possible(state.rollbacks.back())) {
      throw CheckpointError(
          fmt::format("{}: rollbacks: {} is none that a run can have made", where, one.dump()));
    }
  }
  state.save_is_due = json.value("save_is_due", false);
  state.unseen_skips = whole_number_or<int64_t>(json, "unseen_skips", where, 0);
  state.checked_step = whole_number_or<int64_t>(json, "checked_step", where, state.step);
  if (state.checked_step < 0 || state.checked_step > state.step) {
    throw CheckpointError(fmt::format("{}: checked_step is {}, expected a step up to {}", where,
                                      state.checked_step, state.step));
  }
  if (state.unseen_skips < 0 ||
      state.unseen_skips > whole_number<int64_t>(json, "skipped_steps", where)) {
    throw CheckpointError(fmt::format("{}: unseen_skips is {}, expected at most skipped_steps",
                                      where, state.unseen_skips));
  }
  state.spikes = {.losses = json.value("recent_losses", std::vector<double>{}),
                  .high_steps = whole_number_or<int64_t>(json, "high_steps", where, 0),
                  .first_high = whole_number_or<int64_t>(json, "first_high", where, 0)};
  const SpikeHistory& spikes = state.spikes;
  const bool are_finite = std::all_of(spikes.losses.begin(), spikes.losses.end(),
                                      [](double loss) { return std::isfinite(loss); });
  if (!are_finite || spikes.high_steps < 0 || spikes.first_high < 0 ||
      spikes.first_high > state.step) {
    throw CheckpointError(fmt::format(
        "{}: recent_losses, high_steps and first_high are none that a run can have", where));
  }
}

}  // namespace fp8train
