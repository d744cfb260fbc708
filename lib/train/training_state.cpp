#include "train/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "io/json_number.h"
#include "train/divergence_json.h"
#include "train/optimizer_state.h"
#include "train/ranks.h"
#include "train/weights.h"

namespace fp8train {
namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kScalingFile = "scaling.safetensors";
constexpr const char* kStateFile = "state.json";

TensorBytes bytes_of(const HostTensor& tensor) {
  return {tensor.name, DType::f32, tensor.shape, tensor.values.data()};
}

/// JSON has no NaN; 0 stands for a loss that is not known.
double finite_or_zero(double value) {
  return std::isfinite(value) ? value : 0.0;
}

/// Every format that decides what the saved state means: the GEMMs' cells, and which tensor of
/// which layer has a scale.
std::string formats_text(Decoder& model) {
  std::string text;
  for (const GemmPlan* gemm : {&model.plan().fprop, &model.plan().dgrad, &model.plan().wgrad}) {
    text += describe(gemm->a) + " x " + describe(gemm->b) + "; ";
  }
  const ParameterFormats formats = parameter_formats(model.plan());
  for (const TensorFormat* kept : {&formats.value, &formats.gradient, &formats.gradient_wire,
                                   &formats.moment1, &formats.moment2}) {
    text += *kept == TensorFormat{} ? "" : "kept " + describe(*kept) + "; ";
  }
  for (const auto& slot : model.scaling().slots()) {
    text += slot->layer + "." + slot->role + " ";
  }
  return text;
}

std::string state_text(Engine& engine, const Session& session, const TrainingState& state) {
  const ops::StepControl control = engine.optimizer().control();
  nlohmann::ordered_json json = {{"step", state.step},
                                 {"sample_position", state.sample_position},
                                 {"tokens", state.tokens},
                                 {"loss", finite_or_zero(state.loss)},
                                 {"val_loss", finite_or_zero(state.val_loss)},
                                 {"val_step", state.val_step},
                                 {"best_val_loss", state.best_val_loss},
                                 {"best_val_step", state.best_val_step},
                                 {"tokens_per_step", session.tokens_per_step()},
                                 {"plan", session.engine.plan.name},
                                 {"formats", formats_text(engine.model())},
                                 {"optimizer", session.engine.optimizer.name},
                                 {"seed", session.settings.training.seed},
                                 {"seq_length", session.engine.seq_length},
                                 {"shuffle", session.settings.data.shuffle},
                                 {"data_fingerprint", session.data.train.fingerprint()},
                                 {"loss_scale", control.loss_scale},
                                 {"good_steps", control.good_steps},
                                 {"skipped_steps", control.skipped_steps},
                                 {"applied_steps", control.applied_steps},
                                 {"skipped_in_a_row", control.skipped_in_a_row}};
  add_divergence(json, state);
  return json.dump(1) + "\n";
}

CheckpointFile tensor_file(const char* name, const std::vector<HostTensor>& tensors) {
  CheckpointFile file = {.name = name, .tensors = {}, .text = {}};
  for (const HostTensor& tensor : tensors) {
    file.tensors.push_back(bytes_of(tensor));
  }
  return file;
}

void load_control(Optimizer& optimizer, const nlohmann::json& json, const std::string& where) {
  ops::StepControl control = optimizer.control();
  const double loss_scale = json.at("loss_scale").get<double>();
  const bool is_scale = loss_scale > 0 && loss_scale <= std::numeric_limits<float>::max();
  control.loss_scale = is_scale ? static_cast<float>(loss_scale) : 0.0F;
  control.good_steps = whole_number<int32_t>(json, "good_steps", where);
  control.skipped_steps = whole_number<int64_t>(json, "skipped_steps", where);
  control.applied_steps = whole_number<int64_t>(json, "applied_steps", where);
  control.skipped_in_a_row = whole_number_or<int64_t>(json, "skipped_in_a_row", where, 0);
  const bool is_possible = control.loss_scale > 0 && control.good_steps >= 0 &&
                           control.skipped_steps >= 0 && control.applied_steps >= 0 &&
                           control.skipped_in_a_row >= 0 &&
                           control.skipped_in_a_row <= control.skipped_steps;
  if (!is_possible) {
    throw CheckpointError(
        where +
        ": loss_scale, good_steps, skipped_steps, applied_steps or skipped_in_a_row is none that a "
        "run can have");
  }
  optimizer.set_control(control);
}

}  // namespace

bool has_scaling(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kScalingFile);
}

void load_scaling(const std::filesystem::path& folder, ScalingState& scaling) {
  std::vector<ScalingState::SavedTensor> tensors = scaling.save();
  if (tensors.empty()) {
    return;
  }
  const TensorSource source(folder / kScalingFile);
  for (ScalingState::SavedTensor& tensor : tensors) {
    tensor.values = source.read_f32(tensor.name, tensor.shape);
  }
  scaling.load(tensors);
}

namespace {

/// What must be the same for a resumed run to be the run that was saved.
void check_same_run(const nlohmann::json& json, const Session& session, Decoder& model,
                    const std::filesystem::path& folder) {
  const auto require = [&](const char* key, const auto& current, const char* setting) {
    const auto saved = json.at(key).get<std::decay_t<decltype(current)>>();
    if (saved != current) {
      throw CheckpointError(
          fmt::format("{} was saved with {} {}, this run has {}; change the setting back, or start "
                      "a new run from "
                      "its weights with model.from: {}",
                      folder.string(), setting, saved, current, folder.string()));
    }
  };
  require("plan", session.engine.plan.name, "precision row");
  require("formats", formats_text(model), "formats and scaled layers");
  require("optimizer", session.engine.optimizer.name, "optimizer.name");
  require("seed", session.settings.training.seed, "training.seed");
  require("seq_length", session.engine.seq_length, "data.seq_length");
  require("shuffle", session.settings.data.shuffle, "data.shuffle");
  require("data_fingerprint", session.data.train.fingerprint(), "training data of fingerprint");
}

void check_same_model(const Session& session, const std::filesystem::path& folder) {
  if (read_checkpoint_text(folder, "config.json") !=
      write_hf_config(session.engine.model, DType::f32)) {
    throw CheckpointError(fmt::format(
        "{}/config.json describes another model than this run's settings; change model.* back, or "
        "start a new run",
        folder.string()));
  }
}

/// The files that one rank writes for all.
std::vector<CheckpointFile> common_files(Engine& engine, const Session& session,
                                         const TrainingState& state,
                                         const std::vector<HostTensor>& weights,
                                         const std::vector<HostTensor>& scaling) {
  std::vector<CheckpointFile> files = {
      {"config.json", {}, write_hf_config(session.engine.model, DType::f32)},
      {"tokenizer.json", {}, session.tokenizer->to_json()},
      {kStateFile, {}, state_text(engine, session, state)},
      tensor_file(kModelFile, weights),
  };
  if (!scaling.empty()) {
    files.push_back(tensor_file(kScalingFile, scaling));
  }
  return files;
}

std::vector<HostTensor> scaling_tensors(Engine& engine) {
  std::vector<HostTensor> tensors;
  for (ScalingState::SavedTensor& tensor : engine.model().scaling().save()) {
    tensors.push_back({tensor.name, tensor.shape, std::move(tensor.values)});
  }
  return tensors;
}

/// A FileRecord as ranks tell it each other.
struct SentRecord {
  char name[64] = {};
  char hash[33] = {};
  uint64_t bytes = 0;
};

SentRecord sent(const FileRecord& record) {
  SentRecord result;
  check(record.name.size() < sizeof(result.name) && record.xxh3_128.size() < sizeof(result.hash),
        "a file's record fits into a message");
  std::memcpy(result.name, record.name.data(), record.name.size());
  std::memcpy(result.hash, record.xxh3_128.data(), record.xxh3_128.size());
  result.bytes = record.bytes;
  return result;
}

std::string run_id(const Session& session) {
  return fmt::format("{}-{}", session.settings.training.seed, session.data.train.fingerprint());
}

/// "" where all are finite.
std::string non_finite_weight(const std::vector<HostTensor>& weights) {
  for (const HostTensor& tensor : weights) {
    const auto bad = std::find_if(tensor.values.begin(), tensor.values.end(),
                                  [](float value) { return !std::isfinite(value); });
    if (bad != tensor.values.end()) {
      return fmt::format("{}[{}] is {}", tensor.name, bad - tensor.values.begin(), *bad);
    }
  }
  return "";
}

/// Of the first rank; others get none. Throws DivergenceError on all ranks where a weight is not
/// finite: such a checkpoint could not be loaded.
std::vector<HostTensor> all_weights(Engine& engine, int64_t step, Communicator& comm) {
  const bool keep = comm.rank() == 0;
  std::vector<HostTensor> weights;
  const bool is_collective = engine.model().parameters().layout() != nullptr;
  if (keep || is_collective) {
    for_each_weight(engine, [&](const HostTensor& tensor) {
      if (keep) {
        weights.push_back(tensor);
      }
    });
  }
  const std::string bad = non_finite_weight(weights);
  wait_for_first_rank(comm);
  if (first_rank_says(comm, !bad.empty())) {
    throw DivergenceError(
        fmt::format("{}: training has diverged, and nothing of this step is written",
                    keep ? bad : std::string("a weight of the first rank is not finite")),
        DivergenceKind::non_finite_weight, step);
  }
  return weights;
}

/// Removes what has been written so far where that did not succeed.
class PartialCheckpoint {
 public:
  PartialCheckpoint(const std::filesystem::path& root, int64_t step, bool leads)
      : folder_(partial_checkpoint(root, step)), leads_(leads) {
    if (leads_) {
      begin_checkpoint(root, step);
    }
  }
  ~PartialCheckpoint() {
    if (leads_) {
      std::error_code ignored;
      std::filesystem::remove_all(folder_, ignored);  // gone where it has been published
    }
  }
  PartialCheckpoint(const PartialCheckpoint&) = delete;
  PartialCheckpoint& operator=(const PartialCheckpoint&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  bool leads_;
};

/// Each rank writes its part of the optimizer's state, the first one all the rest.
void save_in_parts(const std::filesystem::path& root, Engine& engine, const Session& session,
                   const TrainingState& state, Communicator& comm) {
  const bool leads = comm.rank() == 0;
  const PartialCheckpoint writing(root, state.step, leads);
  const std::filesystem::path& partial = writing.folder();
  wait_for_first_rank(comm);
  const std::vector<HostTensor> weights = all_weights(engine, state.step, comm);
  const FileRecord own = write_checkpoint_file(partial, optimizer_file(engine).file);
  wait_for_first_rank(comm);  // and all others: disks are not equally fast
  std::vector<FileRecord> records;
  for (const SentRecord& record : comm.all_gather_values(sent(own))) {
    records.push_back({record.name, record.bytes, record.hash});
  }
  if (leads) {
    const std::vector<HostTensor> scaling = scaling_tensors(engine);
    for (const CheckpointFile& file : common_files(engine, session, state, weights, scaling)) {
      records.push_back(write_checkpoint_file(partial, file));
    }
    commit_checkpoint(root, state.step, run_id(session), records);
  }
}

}  // namespace

void save_training_state(const std::filesystem::path& root, Engine& engine, const Session& session,
                         const TrainingState& state, int64_t keep_last, Communicator& comm) {
  const bool leads = comm.rank() == 0;
  if (engine.model().parameters().layout() != nullptr) {
    save_in_parts(root, engine, session, state, comm);
  } else if (const std::vector<HostTensor> weights = all_weights(engine, state.step, comm); leads) {
    const std::vector<HostTensor> scaling = scaling_tensors(engine);
    const OptimizerFile optimizer = optimizer_file(engine);
    CheckpointContents contents = {run_id(session),
                                   common_files(engine, session, state, weights, scaling)};
    contents.files.push_back(optimizer.file);
    save_checkpoint(root, state.step, contents);
  }
  if (leads) {
    retain_checkpoints(root, keep_last);
  }
  wait_for_first_rank(comm);
}

namespace {

/// Throws CheckpointError for values that no run has saved. `step`: of the manifest.
void check_counts(const TrainingState& state, int64_t step, const std::filesystem::path& folder) {
  constexpr uint64_t kMostSamples = uint64_t{1} << 62;
  if (state.step != step) {
    throw CheckpointError(fmt::format("{} is of step {}, and the checkpoint's manifest of step {}",
                                      (folder / kStateFile).string(), state.step, step));
  }
  if (state.tokens < 0 || state.sample_position > kMostSamples || state.val_step < 0 ||
      state.val_step > step || state.best_val_step < 0 || state.best_val_step > step) {
    throw CheckpointError(fmt::format(
        "{}: sample_position {}, tokens {}, val_step {} or best_val_step {} is none that a run of "
        "{} steps can have",
        (folder / kStateFile).string(), state.sample_position, state.tokens, state.val_step,
        state.best_val_step, step));
  }
}

/// One whose content has been verified.
ResumedRun load_checkpoint(const std::filesystem::path& folder, Engine& engine,
                           const Session& session) {
  const int64_t step = verify_checkpoint(folder, Verify::sizes).step;
  const std::string where = (folder / kStateFile).string();
  ResumedRun resumed;
  resumed.folder = folder;
  try {
    const nlohmann::json json = nlohmann::json::parse(read_checkpoint_text(folder, kStateFile));
    check_same_model(session, folder);
    check_same_run(json, session, engine.model(), folder);
    resumed.state = {.step = whole_number<int64_t>(json, "step", where),
                     .sample_position = whole_number<uint64_t>(json, "sample_position", where),
                     .tokens = whole_number<int64_t>(json, "tokens", where),
                     .loss = json.value("loss", 0.0),
                     .val_loss = json.value("val_loss", 0.0),
                     .val_step = whole_number_or<int64_t>(json, "val_step", where, 0),
                     .best_val_loss = json.at("best_val_loss").get<double>(),
                     .best_val_step = whole_number<int64_t>(json, "best_val_step", where)};
    check_counts(resumed.state, step, folder);
    read_divergence(json, where, resumed.state);
    const int64_t before =
        whole_number_or(json, "tokens_per_step", where, session.tokens_per_step());
    if (before != session.tokens_per_step()) {
      resumed.note = fmt::format(
          "steps were of {} tokens before and are of {} now; with training.global_batch_size they "
          "do not depend on the number of ranks",
          before, session.tokens_per_step());
    }
    load_weights(engine.device(), engine.model(), TensorSource(folder / kModelFile));
    load_optimizer_files(folder, engine);
    load_control(engine.optimizer(), json, where);
    load_scaling(folder, engine.model().scaling());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", (folder / kStateFile).string(), error.what()));
  }
  return resumed;
}

/// The step of the newest checkpoint that verifies; kNothing where there is none at all, kDamaged
/// where none can be used.
constexpr int64_t kNothing = -1;
constexpr int64_t kDamaged = -2;

int64_t newest_step(const std::filesystem::path& root, std::vector<std::string>& notes) {
  const std::optional<CheckpointPlace> place = newest_valid(root, notes, check_weights);
  return place ? place->step : notes.empty() ? kNothing : kDamaged;
}

}  // namespace

void check_weights(const std::filesystem::path& folder) {
  const TensorSource source(folder / kModelFile);
  for (const std::string& name : source.names()) {
    source.read_f32(name, source.find(name)->shape);
  }
}

bool is_scheduled(const std::filesystem::path& folder) {
  try {
    return nlohmann::json::parse(read_checkpoint_text(folder, kStateFile))
        .value("is_scheduled", true);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", (folder / kStateFile).string(), error.what()));
  }
}

ResumedRun resume_from(const std::filesystem::path& folder, Engine& engine, const Session& session,
                       Communicator& comm) {
  if (comm.rank() == 0) {
    verify_checkpoint(folder);
  }
  wait_for_first_rank(comm);
  return load_checkpoint(folder, engine, session);
}

std::optional<ResumedRun> resume_newest(const std::filesystem::path& root, Engine& engine,
                                        const Session& session, std::vector<std::string>& notes,
                                        Communicator& comm) {
  // Reading all of it to verify it is for one rank; others may see an older folder.
  const int64_t found = comm.rank() == 0 ? newest_step(root, notes) : kNothing;
  wait_for_first_rank(comm);
  const int64_t step = comm.all_gather_values(found).front();
  if (step == kNothing) {
    return std::nullopt;
  }
  if (step == kDamaged) {
    std::string message =
        "none of the run's checkpoints can be used, and a new run would write "
        "over them; set another output_dir, or remove " +
        root.string();
    for (const std::string& note : notes) {
      message += "\n  " + note;
    }
    throw CheckpointError(message);
  }
  for (const CheckpointPlace& place : find_checkpoints(root)) {
    if (place.step == step) {
      return load_checkpoint(place.path, engine, session);
    }
  }
  throw CheckpointError(fmt::format(
      "the first rank goes on from step {}, which is not here: all nodes must see the same "
      "checkpoints in {}",
      step, root.string()));
}

}  // namespace fp8train
