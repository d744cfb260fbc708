#include "train/checkpoint/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "data/tokenizers/registry.h"
#include "io/hf_config.h"
#include "io/strict_json.h"
#include "train/checkpoint/base_weights.h"
#include "train/checkpoint/data_record.h"
#include "train/checkpoint/resume_checks.h"
#include "train/checkpoint/scaling_file.h"
#include "train/checkpoint/state_file.h"
#include "train/checkpoint/state_formats.h"
#include "train/checkpoint/weights.h"
#include "train/ranks.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// JSON has no NaN; 0 stands for a loss that is not known.
double finite_or_zero(double value) {
  return std::isfinite(value) ? value : 0.0;
}

/// Adds the rollbacks, the window of losses and the checks that are still to come.
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

std::string state_text(Engine& engine, const Session& session, const TrainingState& state,
                       const std::string& base) {
  const ops::StepControl control = engine.optimizer().control();
  nlohmann::ordered_json json = {{"step", state.step},
                                 {"sample_position", state.sample_position},
                                 {"tokens", state.tokens},
                                 {"loss", finite_or_zero(state.loss)},
                                 {"first_loss", finite_or_zero(state.first_loss)},
                                 {"val_loss", finite_or_zero(state.val_loss)},
                                 {"val_step", state.val_step},
                                 {"best_val_loss", state.best_val_loss},
                                 {"best_val_step", state.best_val_step},
                                 {"tokens_per_step", session.tokens_per_step()},
                                 {"plan", session.engine.plan.name},
                                 {"formats", state_formats(engine.model())},
                                 {"optimizer", session.engine.optimizer.name},
                                 {"frozen", engine.model().frozen()},
                                 {"settings", rate_settings(session.settings)},
                                 {"seed", session.settings.step.seed},
                                 {"seq_length", session.engine.step.seq_length},
                                 {"shuffle", session.settings.data.shuffle},
                                 {"data_fingerprint", session.data.train.fingerprint()},
                                 {"loss_scale", control.loss_scale},
                                 {"good_steps", control.good_steps},
                                 {"skipped_steps", control.skipped_steps},
                                 {"applied_steps", control.applied_steps},
                                 {"skipped_in_a_row", control.skipped_in_a_row}};
  add_divergence(json, state);
  if (!base.empty()) {
    json["base"] = base;
  }
  if (const LoraSettings& lora = session.engine.model.lora; lora.is_on()) {
    json["lora_base"] = describe(lora.base);
  }
  if (session.data_record != nullptr) {
    json["data_files"] = session.data_record->noted();
  }
  return json_text(json, 1) + "\n";
}

/// `changed_plan`: the loss scale begins as at the start of a run.
void load_control(Optimizer& optimizer, const ops::StepControl& saved, bool changed_plan) {
  ops::StepControl control = optimizer.control();
  control.loss_scale = changed_plan ? optimizer.initial_loss_scale() : saved.loss_scale;
  control.good_steps = changed_plan ? 0 : saved.good_steps;
  control.skipped_steps = saved.skipped_steps;
  control.applied_steps = saved.applied_steps;
  control.skipped_in_a_row = saved.skipped_in_a_row;
  optimizer.set_control(control);
}

std::string id_of_run(const Session& session) {
  return run_id(session.settings.step.seed, session.data.train.fingerprint());
}

}  // namespace

void copy_training_state(Engine& engine, const Session& session, const TrainingState& state,
                         Communicator& comm, StateCopy& into) {
  const bool leads = comm.rank() == 0;
  const Mesh& mesh = engine.strategy().mesh();
  into.scaling = scaling_tensors(engine.model().scaling(), mesh);
  into.scaling_file = scaling_file_of(mesh);
  copy_weights(engine.device(), engine.model().parameters(), session.engine.model, mesh,
               into.weights);
  into.step = state.step;
  into.run_id = id_of_run(session);
  into.model = session.engine.model;
  if (leads && into.texts.empty()) {
    into.texts = {{"config.json",
                   {},
                   write_hf_config(session.engine.model, DType::f32,
                                   {.original = session.source.config, .quantization = {}})}};
    if (session.engine.model.lora.is_on()) {
      const std::string& from = session.settings.model.from;
      const std::string base =
          from.empty() ? "" : std::filesystem::absolute(from).lexically_normal().string();
      into.texts.push_back({kAdapterConfig, {}, adapter_config_text(session.engine.model, base)});
      into.base = hash_of_base(session);
    }
    for (const auto& files : {session.tokenizer->files(), session.source.files}) {
      for (const TokenizerFile& file : files) {
        into.texts.push_back({file.name, {}, file.text});
      }
    }
    if (std::string index = model_index(into.weights); !index.empty()) {
      into.texts.push_back({kModelIndex, {}, std::move(index)});
    }
    into.texts.push_back({kStateFile, {}, {}});
  }
  if (leads) {
    into.texts.back().text = state_text(engine, session, state, into.base);
  }
  if (state_writer(engine).writes) {
    refresh_optimizer_file(engine, into.optimizer);
  }
}

std::optional<CheckpointLoss> evaluated_loss(const std::filesystem::path& folder) {
  return with_state(folder, [](const nlohmann::json& json, const std::string& where) {
    const CheckpointLoss found = {json.value("val_loss", 0.0),
                                  whole_number_or<int64_t>(json, "val_step", where, 0)};
    // 0 stands for a loss that is not known or was not finite.
    return found.step > 0 && found.loss != 0 ? std::optional(found) : std::nullopt;
  });
}

namespace {

/// Throws CheckpointError where the manifest lacks a file that every checkpoint has.
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

/// Returns use(the JSON of a checkpoint's state.json, what read_state() makes of it, its manifest).
template <typename Use>
auto with_checked_state(const std::filesystem::path& folder, const Use& use) {
  const CheckpointManifest manifest = verify_checkpoint(folder, Verify::sizes);
  require_files(folder, manifest);
  return with_state(folder, [&](const nlohmann::json& json, const std::string& /*where*/) {
    return use(json, read_state(json, manifest, folder), manifest);
  });
}

/// Verifies the files that load_here() does not read: the tokenizer's, and scales that begin anew.
void verify_unread(const std::filesystem::path& folder, const CheckpointManifest& manifest) {
  for (const FileRecord& record : manifest.files) {
    if (!is_model_file(record.name) && record.name != kStateFile &&
        !record.name.starts_with("optimizer")) {
      verify_file(folder, record);
    }
  }
}

/// Each rank hashes the files that it reads wholly, and its share of the others.
void load_model_files(const std::filesystem::path& folder, const CheckpointManifest& manifest,
                      Engine& engine, const Session& session, const Communicator& comm,
                      const Magnitudes& magnitudes) {
  if (session.engine.model.lora.is_on()) {
    load_base(engine, session);
    const TensorSource adapters =
        load_adapters(engine.device(), engine.model(), folder, SafetensorsFile::Reads::hashed);
    return require_hash(folder, manifest, kAdapterFile, adapters.files().front().hash());
  }
  const auto files = std::ranges::count_if(
      manifest.files, [](const FileRecord& record) { return is_model_file(record.name); });
  const bool reads_all = !state_writer(engine).in_parts || files == 1;
  const TensorSource weights(folder, [&](size_t file) {
    const bool is_own = static_cast<int>(file) % comm.size() == comm.rank();
    return reads_all || is_own ? SafetensorsFile::Reads::hashed : SafetensorsFile::Reads::plain;
  });
  load_weights(engine.device(), engine.model(), weights, MissingTokens::refuse, magnitudes);
  for (const SafetensorsFile& file : weights.files()) {
    if (file.is_hashed()) {
      require_hash(folder, manifest, file.path().filename().string(), file.hash());
    }
  }
}

/// Does the work of load_checkpoint() for this rank. Calls no collective.
ResumedRun load_here(const std::filesystem::path& folder, Engine& engine, const Session& session,
                     const Communicator& comm, const Magnitudes& magnitudes) {
  return with_checked_state(folder, [&](const nlohmann::json& json, const SavedRun& saved,
                                        const CheckpointManifest& manifest) {
    ResumedRun resumed;
    resumed.folder = folder;
    SameRun same = check_same_run(json, session, engine.model(), folder);
    resumed.notes = std::move(same.notes);
    resumed.state = saved.run;
    resumed.changes = changed_rate_settings(json, session.settings);
    const int64_t before = saved.tokens_per_step;
    if (before != 0 && before != session.tokens_per_step()) {
      const TrainingSettings& training = session.settings.training;
      const std::string length =
          training.max_steps > 0
              ? ""
              : fmt::format(", and {} is worked out as if all were of the new size",
                            length_key(training));
      resumed.notes.push_back(
          fmt::format("steps were of {} tokens before and are of {} now{}; with "
                      "training.global_batch_size they do not depend on the number of ranks",
                      before, session.tokens_per_step(), length));
    }
    load_model_files(folder, manifest, engine, session, comm, magnitudes);
    if (comm.rank() == 0) {
      check_base(json, session, folder);
      verify_unread(folder, manifest);
    }
    load_control(engine.optimizer(), saved.control, same.changed_plan);
    if (same.changed_plan) {
      convert_optimizer_files(folder, engine);
      engine.model().scaling().restart();
      return resumed;
    }
    load_optimizer_files(folder, engine);
    if (same.begins_stage) {
      engine.model().scaling().restart();
      return resumed;
    }
    const Mesh& mesh = engine.strategy().mesh();
    for (std::string& note :
         load_scaling(folder, engine.model().scaling(), mesh.index(Group::state),
                      mesh.size(Group::state), &manifest)) {
      resumed.notes.push_back(std::move(note));
    }
    return resumed;
  });
}

/// How loading has ended on one rank.
enum class Loading : uint8_t { done, damaged, other_run };

}  // namespace

ResumedRun load_checkpoint(const std::filesystem::path& folder, Engine& engine,
                           const Session& session, Communicator& comm) {
  Loading mine = Loading::done;
  std::string message;
  ResumedRun resumed;
  const auto failed = [&](Loading end, const std::exception& error) {
    mine = end;
    message = error.what();
  };
  const Magnitudes magnitudes =
      session.engine.model.lora.is_on() ? Magnitudes() : agreed_magnitudes(engine, folder);
  try {
    resumed = load_here(folder, engine, session, comm, magnitudes);
  } catch (const OtherRunError& error) {
    failed(Loading::other_run, error);
  } catch (const CheckpointError& error) {
    failed(Loading::damaged, error);
  }
  wait_for_first_rank(comm);  // and all others: disks are not equally fast
  const std::vector<Loading> all = comm.all_gather_values(mine);
  const auto first = std::ranges::find_if(all, [](Loading end) { return end != Loading::done; });
  if (first == all.end()) {
    return resumed;
  }
  const auto rank = static_cast<int>(first - all.begin());
  message = text_of_rank(comm, message, rank);
  if (rank != comm.rank()) {
    message = fmt::format("rank {}: {}", rank, message);
  }
  if (*first == Loading::other_run) {
    throw OtherRunError(message);
  }
  throw CheckpointError(message);
}

void check_saved_state(const std::filesystem::path& folder) {
  with_checked_state(folder, [](const auto&...) {});
}

void check_content(const std::filesystem::path& folder) {
  check_saved_state(folder);
  const TensorSource source = own_weights(folder);
  for (const std::string& name : source.names()) {
    source.read_f32(name, source.find(name)->shape);
  }
}

std::vector<std::string> check_resumes(const std::filesystem::path& folder, const Session& session,
                                       Decoder& model) {
  return with_checked_state(folder, [&](const nlohmann::json& json, const auto&...) {
    return check_same_run(json, session, model, folder).notes;
  });
}

bool is_scheduled(const std::filesystem::path& folder) {
  return with_state(folder, [](const nlohmann::json& json, const std::string& /*where*/) {
    return json.value("is_scheduled", true);
  });
}

}  // namespace fp8train
