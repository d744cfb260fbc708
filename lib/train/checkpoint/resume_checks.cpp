#include "train/checkpoint/resume_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/log.h"
#include "config/fields/field_table.h"
#include "data/tokenizers/registry.h"
#include "io/hf_config.h"
#include "train/checkpoint/data_record.h"
#include "train/checkpoint/formats_text.h"
#include "train/records/progress.h"

namespace fp8train {
namespace {

bool accepts_changed_data(const Session& session) {
  return session.settings.checkpoint.changed_data == OnChange::accept;
}

/// "model.hidden_size: was 64, is 128", a line for each key.
std::vector<std::string> model_changes(const ModelConfig& saved, const ModelConfig& current) {
  constexpr size_t kMostNamed = 8;
  Settings before;
  Settings now;
  before.model.config = saved;
  now.model.config = current;
  const auto text = [](const std::string& value) { return value.empty() ? "not set" : value; };
  std::vector<std::string> changes;
  for (const Field& field : field_table()) {
    const std::string was = field.write(before);
    const std::string is = field.write(now);
    if (field.key.starts_with("model.") && was != is) {
      changes.push_back(fmt::format("{}: was {}, is {}", field.key, text(was), text(is)));
    }
  }
  if (changes.empty()) {
    changes.emplace_back("the model differs in a property that has no key");
  }
  if (changes.size() > kMostNamed) {
    const size_t left = changes.size() - kMostNamed;
    changes.resize(kMostNamed);
    changes.push_back(fmt::format("and {} more", left));
  }
  return changes;
}

/// Lines for what differs, and lines for what is no error.
class RunComparison {
 public:
  RunComparison(const nlohmann::json& state, const Session& session)
      : state_(state), session_(session) {}

  template <typename T>
  void require(const char* key, const T& current, const char* setting) {
    const T saved = state_.at(key).get<T>();
    if (saved != current) {
      differences.push_back(fmt::format("{}: was {}, is {}", setting, saved, current));
    }
  }

  void model(const std::filesystem::path& folder) {
    const std::string where = (folder / "config.json").string();
    const HfConfig saved = parse_hf_config(read_checkpoint_text(folder, "config.json"), where);
    changed_model = !same_computation(completed(saved.model), session_.engine.model);
    if (changed_model) {
      differences = model_changes(completed(saved.model), session_.engine.model);
    }
  }

  void require_formats(const std::string& current) {
    // Checkpoints of earlier versions say "kept" for "stored".
    const std::string saved = std::regex_replace(state_.at("formats").get<std::string>(),
                                                 std::regex("\\bkept "), "stored ");
    if (saved != current) {
      const auto changes = format_changes(saved, current);
      differences.insert(differences.end(), changes.begin(), changes.end());
    }
  }

  /// The plan by name, and every format and scaled layer.
  void plan(Decoder& model) {
    if (ends_stage_before()) {
      begins_stage = true;
      return;
    }
    const size_t before = differences.size();
    require("plan", session_.engine.plan.name, "precision plan");
    // They follow from a model, or a plan of another name.
    if (differences.size() == before && !changed_model) {
      require_formats(formats_text(model));
    }
    const bool differs = differences.size() > before;
    changed_plan = differs && session_.settings.checkpoint.changed_plan == OnChange::accept;
    refused_plan = differs && !changed_plan;
    acceptable += refused_plan ? differences.size() - before : 0;
    if (changed_plan) {
      differences.resize(before);
      notes.push_back(fmt::format(
          "the checkpoint is of the plan {} and the run continues with {}: weights and moments are "
          "rounded to its formats, and its scaling begins as at the start of a run",
          state_.at("plan").get<std::string>(), session_.engine.plan.name));
    }
  }

  void data() {
    DataRecord::Comparison files;
    if (session_.data_record != nullptr && state_.contains("data_files")) {
      files = session_.data_record->compare(state_.at("data_files"));
    }
    const std::string current = session_.data.train.fingerprint();
    if (files.changes.empty() && state_.at("data_fingerprint").get<std::string>() != current) {
      files.changes.push_back(other_tokens(current));
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
  bool changed_plan = false;  ///< and it is accepted
  bool refused_plan = false;

 private:
  /// Whether the checkpoint is of the last step of the stage before, whose plan has saved it.
  bool ends_stage_before() const {
    const size_t stage = session_.stage_after(state_.at("step").get<int64_t>());
    return stage > 0 && state_.at("step").get<int64_t>() == session_.stages[stage].begin &&
           session_.engine.plan.name == session_.stages[stage].plan.name &&
           state_.at("plan").get<std::string>() == session_.stages[stage - 1].plan.name;
  }

  /// The files are the same as far as is known, and samples of their tokens are not.
  std::string other_tokens(const std::string& current) const {
    if (session_.data_record == nullptr || !state_.contains("data_files")) {
      return fmt::format("training data of fingerprint: was {}, is {}",
                         state_.at("data_fingerprint").get<std::string>(), current);
    }
    const char* const settings =
        "data.tokenizer, data.text_key, data.chat_template, data.packing, data.val_fraction, "
        "data.train[].weight or a format";
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

}  // namespace

std::string run_id(uint64_t seed, const std::string& data_fingerprint) {
  return fmt::format("{}-{}", seed, data_fingerprint);
}

void require_files(const std::filesystem::path& folder, const CheckpointManifest& manifest) {
  const auto is_listed = [&](const std::string& name) {
    return std::any_of(manifest.files.begin(), manifest.files.end(),
                       [&](const FileRecord& file) { return file.name == name; });
  };
  const auto names = tokenizers::tokenizer_file_names();
  const bool has_tokenizer = std::any_of(names.begin(), names.end(), is_listed);
  const std::string tokenizer = fmt::format("{}", fmt::join(names, " or "));
  for (const std::string& name : {std::string("config.json"), tokenizer, std::string("state.json"),
                                  std::string("model.safetensors")}) {
    if (name == tokenizer ? !has_tokenizer : !is_listed(name)) {
      throw CheckpointError(fmt::format(
          "{}/MANIFEST.json does not list {}, which every checkpoint has; remove the folder to go "
          "on from an earlier one",
          folder.string(), name));
    }
  }
}

void check_state(const nlohmann::json& state, const CheckpointManifest& manifest,
                 const std::filesystem::path& folder) {
  const auto fail = [&](const std::string& text) {
    throw CheckpointError(
        fmt::format("{}/state.json: {}; remove the folder to go on from an "
                    "earlier checkpoint",
                    folder.string(), text));
  };
  const auto count = [&](const char* key, int64_t most) {
    const nlohmann::json& value = state.at(key);
    const bool whole = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{1} << 62;
    if (!whole || value.get<int64_t>() > most) {
      fail(fmt::format("{} is {}, expected a whole number in [0, {}]", key, value.dump(), most));
    }
    return value.get<int64_t>();
  };
  constexpr int64_t kMost = int64_t{1} << 62;
  const int64_t step = count("step", kMost);
  if (step != manifest.step) {
    fail(fmt::format("it is of step {}, MANIFEST.json of step {}", step, manifest.step));
  }
  const std::string id =
      run_id(state.at("seed").get<uint64_t>(), state.at("data_fingerprint").get<std::string>());
  if (id != manifest.run_id) {
    fail(fmt::format("it is of run {}, MANIFEST.json of run {}: the files of two runs are mixed",
                     id, manifest.run_id));
  }
  count("sample_position", kMost);
  count("tokens", kMost);
  if (state.contains("val_step")) {
    count("val_step", step);
  }
  count("best_val_step", step);
  count("applied_steps", kMost);
  const int64_t skipped = count("skipped_steps", kMost);
  if (state.contains("skipped_in_a_row")) {
    count("skipped_in_a_row", skipped);
  }
  count("good_steps", std::numeric_limits<int32_t>::max());
  const double scale = state.at("loss_scale").get<double>();
  using Fp32 = std::numeric_limits<float>;
  if (!(scale >= Fp32::denorm_min() && scale <= Fp32::max())) {
    fail(fmt::format("loss_scale is {}, expected a number > 0 that fp32 holds", scale));
  }
}

namespace {

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
    lines += fmt::format("\nto start a new run from its weights: {} model= model.from={}", fresh,
                         folder.string());
  }
  return lines;
}

}  // namespace

SameRun check_same_run(const nlohmann::json& state, const Session& session, Decoder& model,
                       const std::filesystem::path& folder) {
  RunComparison comparison(state, session);
  comparison.model(folder);
  comparison.plan(model);
  comparison.require("optimizer", session.engine.optimizer.name, "optimizer.name");
  comparison.require("seed", session.settings.step.seed, "training.seed");
  comparison.require("seq_length", session.engine.step.seq_length, "data.seq_length");
  comparison.require("shuffle", session.settings.data.shuffle, "data.shuffle");
  comparison.data();
  if (comparison.differences.empty()) {
    return {comparison.notes, comparison.changed_plan, comparison.begins_stage};
  }
  std::string message = fmt::format("{} differs from this run:", folder.string());
  for (const std::string& difference : comparison.differences) {
    message += "\n  " + difference;
  }
  throw CheckpointError(message + advice(comparison, session, folder));
}

std::string begin_data_record(Session& session, const std::filesystem::path& cache) {
  session.data_record = std::make_shared<DataRecord>(session.data.train, cache);
  const FileHashes& hashes = session.data_record->hashes();
  const uint64_t left = hashes.bytes_left();
  return fmt::format("        {} data file{} hashed{}", hashes.files().size(),
                     hashes.files().size() == 1 ? "" : "s",
                     left == 0 ? ""
                               : fmt::format(", {} of them while the run goes on",
                                             describe_bytes(static_cast<double>(left))));
}

void check_data(const Session& session) {
  if (session.data_record == nullptr) {
    return;
  }
  const std::vector<std::string> changes = session.data_record->check();
  if (changes.empty()) {
    return;
  }
  if (accepts_changed_data(session)) {
    log_warning(fmt::format("data: {}", fmt::join(changes, "; ")));
    return;
  }
  throw CheckpointError(fmt::format(
      "the data has changed since the checkpoint that this run went on from: {}. What was trained "
      "since then has seen other data: put the file back and go on from that checkpoint "
      "(checkpoint.resume), or set checkpoint.changed_data: accept",
      fmt::join(changes, "; ")));
}

void check_data_at_end(const Session& session) {
  check_data(session);
  if (session.data_record != nullptr && session.data_record->bytes_to_compare() > 0) {
    log_warning(fmt::format(
        "{} of data files could not be compared with the checkpoint before the run ended",
        describe_bytes(static_cast<double>(session.data_record->bytes_to_compare()))));
  }
}

}  // namespace fp8train
