#include "train/checkpoint/resume_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_error.h"
#include "base/text.h"
#include "config/fields/field_table.h"
#include "data/tokenizers/registry.h"
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
  if (changes.size() > kNamed) {
    const size_t left = changes.size() - kNamed;
    changes.resize(kNamed);
    changes.push_back(fmt::format("and {} more", left));
  }
  return changes;
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
        "data.tokenizer, data.text_key, data.bad_lines, data.chat_template, data.packing, "
        "data.val_fraction, data.train[].weight or a format";
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

constexpr int64_t kMostCount = int64_t{1} << 62;

[[noreturn]] void refuse_state(const std::filesystem::path& folder, const std::string& why) {
  throw CheckpointError(
      fmt::format("{}/state.json: {}; remove the folder to resume from an earlier checkpoint",
                  folder.string(), why));
}

/// Returns an entry of state.json that counts something, up to `most`.
int64_t checked_count(const nlohmann::json& state, const char* key, int64_t most,
                      const std::filesystem::path& folder) {
  const nlohmann::json& value = state.at(key);
  const bool is_whole = value.is_number_unsigned() && value.get<uint64_t>() <= kMostCount;
  if (!is_whole || value.get<int64_t>() > most) {
    refuse_state(folder, fmt::format("{} is {}, expected a whole number in [0, {}]", key,
                                     value.dump(), most));
  }
  return value.get<int64_t>();
}

/// The loader has handed out the samples of the tokens, and those that rollbacks left out.
void check_position(const nlohmann::json& state, const std::filesystem::path& folder) {
  const auto count = [&](const nlohmann::json& of, const char* key, int64_t least) {
    const int64_t value = checked_count(of, key, kMostCount, folder);
    if (value < least) {
      refuse_state(folder, fmt::format("{} is {}, expected at least {}", key, value, least));
    }
    return value;
  };
  if (state.contains("tokens_per_step")) {
    count(state, "tokens_per_step", 1);
  }
  int64_t most = count(state, "tokens", 0) / count(state, "seq_length", 1);
  for (const nlohmann::json& one : state.value("rollbacks", nlohmann::json::array())) {
    most += count(one, "end_sample", 0) - count(one, "first_sample", 0);
    most = std::min(most, kMostCount);
  }
  if (const int64_t position = count(state, "sample_position", 0); position > most) {
    refuse_state(folder, fmt::format("sample_position is {}, but its tokens and rollbacks are of "
                                     "{} samples",
                                     position, most));
  }
}

/// The text of an earlier version is only compared.
void check_formats(const nlohmann::json& state, const std::filesystem::path& folder) {
  if (!state.contains("formats") || state.at("formats").is_string()) {
    return;
  }
  try {
    read_state_formats(state.at("formats"));
  } catch (const ConfigError& error) {
    refuse_state(folder, fmt::format("formats: {}", error.what()));
  } catch (const nlohmann::json::exception& error) {
    refuse_state(folder, "formats: " + plain_json_error(error));
  }
}

}  // namespace

std::string run_id(uint64_t seed, const std::string& data_fingerprint) {
  return fmt::format("{}-{}", seed, data_fingerprint);
}

void require_files(const std::filesystem::path& folder, const CheckpointManifest& manifest) {
  const auto is_listed = [&](const std::string& name) {
    return std::any_of(manifest.files.begin(), manifest.files.end(),
                       [&](const FileRecord& file) { return file.name == name; });
  };
  const auto refuse = [&](const std::string& name) {
    throw CheckpointError(fmt::format(
        "{}/MANIFEST.json does not list {}, which every checkpoint has; remove the folder to "
        "resume from an earlier one",
        folder.string(), name));
  };
  const char* const model = is_listed(kModelIndex)    ? kModelIndex
                            : is_listed(kAdapterFile) ? kAdapterFile
                                                      : "model.safetensors";
  for (const char* name : {"config.json", kStateFile, model}) {
    if (!is_listed(name)) {
      refuse(name);
    }
  }
  const auto names = tokenizers::tokenizer_file_names();
  if (std::none_of(names.begin(), names.end(), is_listed)) {
    refuse(alternatives(names));
  }
}

void check_state(const nlohmann::json& state, const CheckpointManifest& manifest,
                 const std::filesystem::path& folder) {
  const auto count = [&](const char* key, int64_t most) {
    return checked_count(state, key, most, folder);
  };
  const int64_t step = count("step", kMostCount);
  if (step != manifest.step) {
    refuse_state(folder,
                 fmt::format("it is of step {}, MANIFEST.json of step {}", step, manifest.step));
  }
  const std::string id =
      run_id(state.at("seed").get<uint64_t>(), state.at("data_fingerprint").get<std::string>());
  if (id != manifest.run_id) {
    refuse_state(folder, fmt::format("it is of run {}, MANIFEST.json of run {}: the files of two "
                                     "runs are mixed",
                                     id, manifest.run_id));
  }
  check_position(state, folder);
  for (const char* key : {"loss", "first_loss", "val_loss", "best_val_loss"}) {
    if (state.contains(key) && !state.at(key).is_number()) {
      refuse_state(folder, fmt::format("{} is {}, expected a number", key, state.at(key).dump()));
    }
  }
  if (state.contains("val_step")) {
    count("val_step", step);
  }
  count("best_val_step", step);
  count("applied_steps", step);
  const int64_t skipped = count("skipped_steps", step);
  if (state.contains("skipped_in_a_row")) {
    count("skipped_in_a_row", skipped);
  }
  count("good_steps", std::numeric_limits<int32_t>::max());
  const double scale = state.at("loss_scale").get<double>();
  using Fp32 = std::numeric_limits<float>;
  if (!(scale >= Fp32::denorm_min() && scale <= Fp32::max())) {
    refuse_state(folder,
                 fmt::format("loss_scale is {}, expected a number > 0 that fp32 holds", scale));
  }
  check_formats(state, folder);
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
