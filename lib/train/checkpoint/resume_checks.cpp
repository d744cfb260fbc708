#include "train/checkpoint/resume_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_error.h"
#include "base/text.h"
#include "config/fields/field_table.h"
#include "io/hf_config.h"
#include "io/safetensors/adapters.h"
#include "model/lora.h"
#include "train/checkpoint/data_record.h"
#include "train/checkpoint/state_file.h"
#include "train/checkpoint/state_formats.h"

namespace fp8train {
namespace {

/// "model.hidden_size: was 64, is 128", a line for each key.
std::vector<std::string> model_changes(const ModelConfig& saved, const ModelConfig& current) {
  constexpr size_t kNamed = 8;
  Settings before, now;
  before.model.config = saved;
  now.model.config = current;
  const auto text = [](const std::string& value) { return value.empty() ? "not set" : value; };
  std::vector<std::string> changes;
  for (const Field& field : field_table()) {
    const std::string was = field.write(before), is = field.write(now);
    if (field.key.starts_with("model.") && was != is) {
      changes.push_back(fmt::format("{}: was {}, is {}", field.key, text(was), text(is)));
    }
  }
  if (changes.empty()) {
    changes.emplace_back("the model differs in a property that has no key");
  }
  return shortened(std::move(changes), kNamed);
}

/// Compares a checkpoint with the run that resumes from it, and collects lines for what differs and
/// notes on what is accepted.
class RunComparison {
 public:
  RunComparison(const nlohmann::json& state, const Session& session)
      : state_(state), session_(session) {}

  /// Compares an entry of state.json with that of this run, which `setting` decides.
  template <typename T>
  void compare(const char* key, const T& current, const char* setting) {
    const T saved = state_.at(key).get<T>();
    if (saved != current) {
      differences.push_back(fmt::format("{}: was {}, is {}", setting, saved, current));
    }
  }

  void compare_model(const std::filesystem::path& folder) {
    const std::string text = read_checkpoint_text(folder, "config.json");
    ModelConfig saved = completed(parse_hf_config(text, (folder / "config.json").string()).model);
    const ModelConfig& current = session_.engine.model;
    if (holds_adapters(folder)) {
      saved.lora = read_adapter_folder(folder).lora;
      saved.lora.targets = peft_targets(saved);
      saved.lora.base = current.lora.base;
    }
    changed_model = !same_computation(saved, current);
    if (changed_model) {
      differences = model_changes(saved, current);
    }
    if (current.lora.is_on() && state_.contains("lora_base")) {
      compare("lora_base", describe(current.lora.base), "model.lora.base");
    }
  }

  /// The plan by name, and every format and scaled layer.
  void compare_plan(Decoder& model) {
    if (ends_stage_before()) {
      begins_stage = true;
      return;
    }
    const auto saved = state_.at("plan").get<std::string>();
    const std::string& current = session_.engine.plan.name;
    std::vector<std::string> changes;
    if (saved != current) {
      changes = {fmt::format("precision plan: was {}, is {}", saved, current)};
    } else if (!changed_model) {  // else they follow from the model
      changes = format_changes(state_.at("formats"), state_formats(model));
    }
    if (changes.empty()) {
      return;
    }
    if (session_.settings.checkpoint.changed_plan == OnChange::accept) {
      changed_plan = true;
      notes.push_back(accepted_plan(saved, changes));
    } else {
      refused_plan = true;
      acceptable += changes.size();
      differences.insert(differences.end(), changes.begin(), changes.end());
    }
  }

  /// A parameter that was frozen has no state of the optimizer.
  void compare_frozen(Decoder& model) {
    const auto frozen = state_.value("frozen", std::vector<std::string>());
    for (const auto& parameter : model.parameters().all()) {
      if (parameter->trained && std::ranges::find(frozen, parameter->name) != frozen.end()) {
        differences.push_back(
            fmt::format("training.frozen: had {}, and has it no longer", parameter->name));
      }
    }
  }

  void compare_data() {
    DataRecord::Comparison files;
    if (session_.data_record != nullptr && state_.contains("data_files")) {
      files = session_.data_record->compare(state_.at("data_files"));
    }
    const std::string current = session_.data.train.fingerprint();
    if (files.changes.empty() && state_.at("data_fingerprint").get<std::string>() != current) {
      files.changes.push_back(describe_other_tokens(current));
    }
    notes.insert(notes.end(), files.doubts.begin(), files.doubts.end());
    changed_data = !files.changes.empty() && !accepts_changed_data(session_);
    acceptable += changed_data ? files.changes.size() : 0;
    auto& lines = changed_data ? differences : notes;
    for (const std::string& change : files.changes) {
      lines.push_back("data: " + change);
    }
  }

  std::vector<std::string> differences;
  std::vector<std::string> notes;
  size_t acceptable = 0;  ///< differences that settings may accept
  bool changed_model = false;
  bool changed_data = false;
  bool begins_stage = false;
  bool changed_plan = false;  ///< the plan or its formats differ, which is accepted
  bool refused_plan = false;  ///< they differ, which is not

 private:
  /// Whether the checkpoint is of the last step of the stage before, whose plan has saved it.
  bool ends_stage_before() const {
    const size_t stage = session_.stage_after(state_.at("step").get<int64_t>());
    return stage > 0 && state_.at("step").get<int64_t>() == session_.stages[stage].begin &&
           session_.engine.plan.name == session_.stages[stage].plan.name &&
           state_.at("plan").get<std::string>() == session_.stages[stage - 1].plan.name;
  }

  /// A line for the user, where `changes` of the plan that saved are accepted.
  std::string accepted_plan(const std::string& saved,
                            const std::vector<std::string>& changes) const {
    const std::string& current = session_.engine.plan.name;
    const std::string change =
        saved != current
            ? fmt::format("the checkpoint is of the plan {} and the run continues with {}", saved,
                          current)
            : fmt::format("the run continues with other formats than the checkpoint's ({})",
                          fmt::join(changes, "; "));
    return change +
           ": weights and moments are rounded to its formats, and its scaling begins as at the "
           "start of a run";
  }

  /// A line for files that are the same as far as is known, while samples of their tokens are not.
  std::string describe_other_tokens(const std::string& current) const {
    if (session_.data_record == nullptr || !state_.contains("data_files")) {
      return fmt::format("training data of fingerprint: was {}, is {}",
                         state_.at("data_fingerprint").get<std::string>(), current);
    }
    const char* const settings =
        "a key of data (tokenizer, text_key, bad_lines, chat_template, packing, document_mask, "
        "val_fraction, train[].weight) or a format";
    return session_.data_record->bytes_to_compare() > 0
               ? fmt::format(
                     "samples of the tokens differ: a file has other content of the same "
                     "size, or {} has changed",
                     settings)
               : fmt::format("the same files give other tokens: {} has changed", settings);
  }

  const nlohmann::json& state_;
  const Session& session_;
};

/// Lists the ways to continue, one per line.
std::string advice(const RunComparison& found, const Session& session,
                   const std::filesystem::path& folder) {
  const bool is_named = session.settings.checkpoint.resume_from() == ResumeFrom::folder;
  const char* const fresh =
      is_named ? "checkpoint.resume=auto output_dir=ANOTHER_FOLDER" : "output_dir=ANOTHER_FOLDER";
  std::string lines = "\nto continue that run: change this back";
  if (found.acceptable == found.differences.size()) {
    lines += fmt::format("\nto continue it with this change:{}{}",
                         found.changed_data ? " checkpoint.changed_data=accept" : "",
                         found.refused_plan ? " checkpoint.changed_plan=accept" : "");
  }
  lines += fmt::format("\nto start a new run: {}", fresh);
  if (!found.changed_model) {
    lines += fmt::format(
        "\nto start a new run from its weights, with your other keys of model, such as "
        "model.recompute, given again: {} model= model.from={}",
        fresh, folder.string());
  }
  return lines;
}

constexpr int64_t kLargestCount = (int64_t{1} << 62) - 1;

[[noreturn]] void refuse_entry(const char* key, const nlohmann::json& value,
                               const std::string& expected) {
  throw CheckpointError(fmt::format("{} is {}, expected {}", key, value.dump(), expected));
}

/// Returns the entry of an object in state.json that counts something.
int64_t count(const nlohmann::json& of, const char* key, int64_t largest = kLargestCount,
              int64_t least = 0) {
  const nlohmann::json& value = of.at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(largest) ||
      value.get<int64_t>() < least) {
    refuse_entry(key, value, fmt::format("a whole number in [{}, {}]", least, largest));
  }
  return value.get<int64_t>();
}

/// Returns count(), or 0 where an earlier version did not write it.
int64_t count_if_any(const nlohmann::json& of, const char* key, int64_t largest = kLargestCount,
                     int64_t least = 0) {
  return of.contains(key) ? count(of, key, largest, least) : 0;
}

double number_if_any(const nlohmann::json& of, const char* key) {
  if (of.contains(key) && !of.at(key).is_number()) {
    refuse_entry(key, of.at(key), "a number");
  }
  return of.value(key, 0.0);
}

/// Returns the result of `read`, whose errors then name the entry.
template <typename Read>
auto within(const char* key, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw CheckpointError(fmt::format("{}: {}", key, error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", key, plain_json_error(error)));
  }
}

std::vector<Rollback> read_rollbacks(const nlohmann::json& state) {
  std::vector<Rollback> rollbacks;
  for (const nlohmann::json& one : state.value("rollbacks", nlohmann::json::array())) {
    const int64_t from = count(one, "from_step", kLargestCount, 1), end = count(one, "end_sample");
    rollbacks.push_back({.from_step = from,
                         .to_step = count(one, "to_step", from - 1),
                         .first_sample = static_cast<uint64_t>(count(one, "first_sample", end)),
                         .end_sample = static_cast<uint64_t>(end),
                         .kind = one.at("kind").get<std::string>()});
  }
  return rollbacks;
}

/// The samples that the loader has handed out at most: those of the tokens, and those that
/// rollbacks left out.
int64_t samples_of(const nlohmann::json& state, const std::vector<Rollback>& rollbacks) {
  int64_t samples = count(state, "tokens") / count(state, "seq_length", kLargestCount, 1);
  for (const Rollback& one : rollbacks) {
    const auto left_out = static_cast<int64_t>(one.end_sample - one.first_sample);
    samples = std::min(samples + left_out, kLargestCount);
  }
  return samples;
}

void check_origin(const nlohmann::json& state, const CheckpointManifest& manifest) {
  if (const int64_t step = count(state, "step"); step != manifest.step) {
    throw CheckpointError(
        fmt::format("it is of step {}, MANIFEST.json of step {}", step, manifest.step));
  }
  const std::string id =
      run_id(state.at("seed").get<uint64_t>(), state.at("data_fingerprint").get<std::string>());
  if (id != manifest.run_id) {
    throw CheckpointError(
        fmt::format("it is of run {}, MANIFEST.json of run {}: the files of two runs are mixed", id,
                    manifest.run_id));
  }
}

ops::StepControl read_control(const nlohmann::json& state) {
  const int64_t step = count(state, "step"), skipped = count(state, "skipped_steps", step);
  const double scale = state.at("loss_scale").get<double>();
  using Fp32 = std::numeric_limits<float>;
  if (!(scale >= Fp32::denorm_min() && scale <= Fp32::max())) {
    refuse_entry("loss_scale", scale, "a number > 0 that fp32 holds");
  }
  ops::StepControl control = {};
  control.loss_scale = static_cast<float>(scale);
  control.good_steps =
      static_cast<int32_t>(count(state, "good_steps", std::numeric_limits<int32_t>::max()));
  control.skipped_steps = skipped;
  control.applied_steps = count(state, "applied_steps", step);
  control.skipped_in_a_row = count_if_any(state, "skipped_in_a_row", skipped);
  return control;
}

TrainingState read_run(const nlohmann::json& state) {
  const int64_t step = count(state, "step");
  std::vector<Rollback> rollbacks = within("rollbacks", [&] { return read_rollbacks(state); });
  const int64_t samples = samples_of(state, rollbacks);
  return {
      .step = step,
      .sample_position = static_cast<uint64_t>(count(state, "sample_position", samples)),
      .tokens = count(state, "tokens"),
      .loss = number_if_any(state, "loss"),
      .first_loss = number_if_any(state, "first_loss"),
      .val_loss = number_if_any(state, "val_loss"),
      .val_step = count_if_any(state, "val_step", step),
      .best_val_loss = state.at("best_val_loss").get<double>(),
      .best_val_step = count(state, "best_val_step", step),
      .save_is_due = state.value("save_is_due", false),
      .unseen_skips = count_if_any(state, "unseen_skips", count(state, "skipped_steps")),
      .checked_step = state.contains("checked_step") ? count(state, "checked_step", step) : step,
      .spikes = {.losses = state.value("recent_losses", std::vector<double>{}),
                 .high_steps = count_if_any(state, "high_steps"),
                 .first_high = count_if_any(state, "first_high", step)},
      .rollbacks = std::move(rollbacks)};
}

}  // namespace

SavedRun read_state(const nlohmann::json& state, const CheckpointManifest& manifest,
                    const std::filesystem::path& folder) {
  std::string why;
  try {
    check_origin(state, manifest);
    if (state.contains("formats") && !state.at("formats").is_string()) {  // one text earlier
      within("formats", [&] { return read_state_formats(state.at("formats")); });
    }
    return {read_run(state), read_control(state),
            count_if_any(state, "tokens_per_step", kLargestCount, 1)};
  } catch (const CheckpointError& error) {
    why = error.what();
  } catch (const nlohmann::json::exception& error) {
    why = plain_json_error(error);
  }
  throw CheckpointError(
      fmt::format("{}/state.json: {}; remove the folder to resume from an earlier checkpoint",
                  folder.string(), why));
}

nlohmann::ordered_json rate_settings(const Settings& settings) {
  // An object that operator[] makes of null is damaged where its memory is refused (3.11.2).
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const Field& field : field_table()) {
    if (field.key.starts_with("optimizer.") || field.key.starts_with("scheduler.")) {
      all[field.key] = field.write(settings);
    }
  }
  return all;
}

std::vector<std::string> changed_rate_settings(const nlohmann::json& state,
                                               const Settings& settings) {
  std::vector<std::string> changes;
  const nlohmann::json saved = state.value("settings", nlohmann::json::object());
  const nlohmann::ordered_json current = rate_settings(settings);
  for (const auto& [key, value] : current.items()) {
    const auto now = value.get<std::string>();
    if (const std::string was = saved.value(key, now); was != now) {
      changes.push_back(fmt::format("{}: {} -> {}", key, was, now));
    }
  }
  return changes;
}

SameRun check_same_run(const nlohmann::json& state, const Session& session, Decoder& model,
                       const std::filesystem::path& folder) {
  RunComparison comparison(state, session);
  comparison.compare_model(folder);
  comparison.compare_plan(model);
  comparison.compare("optimizer", session.engine.optimizer.name, "optimizer.name");
  comparison.compare("seed", session.settings.step.seed, "training.seed");
  comparison.compare("seq_length", session.engine.step.seq_length, "data.seq_length");
  comparison.compare("shuffle", session.settings.data.shuffle, "data.shuffle");
  comparison.compare_data();
  comparison.compare_frozen(model);
  if (comparison.differences.empty()) {
    return {comparison.notes, comparison.changed_plan, comparison.begins_stage};
  }
  std::string message = fmt::format("{} differs from this run:", folder.string());
  for (const std::string& difference : comparison.differences) {
    message += "\n  " + difference;
  }
  throw OtherRunError(message + advice(comparison, session, folder));
}

}  // namespace fp8train
