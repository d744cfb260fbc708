#include "train/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "train/data_record.h"
#include "train/optimizer_state.h"
#include "train/ranks.h"
#include "train/resume_checks.h"
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
  if (session.data_record != nullptr) {
    json["data_files"] = session.data_record->noted();
  }
  return json.dump(1) + "\n";
}

CheckpointFile tensor_file(const char* name, const std::vector<HostTensor>& tensors) {
  CheckpointFile file = {.name = name, .tensors = {}, .text = {}};
  for (const HostTensor& tensor : tensors) {
    file.tensors.push_back(bytes_of(tensor));
  }
  return file;
}

void load_control(Optimizer& optimizer, const nlohmann::json& json) {
  ops::StepControl control = optimizer.control();
  control.loss_scale = json.at("loss_scale").get<float>();
  control.good_steps = json.at("good_steps").get<int32_t>();
  control.skipped_steps = json.at("skipped_steps").get<int64_t>();
  control.applied_steps = json.at("applied_steps").get<int64_t>();
  control.skipped_in_a_row = json.value("skipped_in_a_row", int64_t{0});
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

std::string id_of_run(const Session& session) {
  return run_id(session.settings.training.seed, session.data.train.fingerprint());
}

/// Throws NumericError where a weight is not finite: such a checkpoint could not be loaded.
std::vector<HostTensor> all_weights(Engine& engine, bool keep) {
  std::vector<HostTensor> weights;
  for_each_weight(engine, [&](const HostTensor& tensor) {
    if (keep) {
      weights.push_back(tensor);
    }
  });
  for (const HostTensor& tensor : weights) {
    const auto bad = std::find_if(tensor.values.begin(), tensor.values.end(),
                                  [](float value) { return !std::isfinite(value); });
    if (bad != tensor.values.end()) {
      throw NumericError(
          fmt::format("{}[{}] is {}: training has diverged, and nothing of this "
                      "step is written",
                      tensor.name, bad - tensor.values.begin(), *bad));
    }
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

/// A run's folder that is gone was removed or unmounted: one made in its place would hold this
/// checkpoint alone, perhaps on another disk.
void require_folder(const std::filesystem::path& root) {
  std::error_code failure;
  if (!std::filesystem::is_directory(root, failure)) {
    throw DeviceError(fmt::format(
        "{} is gone: it was removed, renamed or unmounted while the run went on; bring it back to "
        "save there",
        root.string()));
  }
}

/// Each rank writes its part of the optimizer's state, the first one all the rest.
void save_in_parts(const std::filesystem::path& root, Engine& engine, const Session& session,
                   const TrainingState& state, Communicator& comm) {
  const bool leads = comm.rank() == 0;
  const PartialCheckpoint writing(root, state.step, leads);
  const std::filesystem::path& partial = writing.folder();
  wait_for_first_rank(comm);
  const std::vector<HostTensor> weights = all_weights(engine, leads);
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
    commit_checkpoint(root, state.step, id_of_run(session), records);
  }
}

}  // namespace

void save_training_state(const std::filesystem::path& root, Engine& engine, const Session& session,
                         const TrainingState& state, int64_t keep_last, Communicator& comm) {
  const bool leads = comm.rank() == 0;
  if (leads) {
    require_folder(root);
  }
  if (engine.model().parameters().layout() != nullptr) {
    save_in_parts(root, engine, session, state, comm);
  } else if (leads) {
    const std::vector<HostTensor> weights = all_weights(engine, true);
    const std::vector<HostTensor> scaling = scaling_tensors(engine);
    const OptimizerFile optimizer = optimizer_file(engine);
    CheckpointContents contents = {id_of_run(session),
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

/// One whose content has been verified.
ResumedRun load_checkpoint(const std::filesystem::path& folder, Engine& engine,
                           const Session& session) {
  const CheckpointManifest manifest = verify_checkpoint(folder, Verify::sizes);
  require_files(folder, manifest);
  ResumedRun resumed;
  resumed.folder = folder;
  try {
    const nlohmann::json json = nlohmann::json::parse(read_checkpoint_text(folder, kStateFile));
    check_state(json, manifest, folder);
    resumed.notes = check_same_run(json, session, engine.model(), folder);
    resumed.state = {.step = json.at("step").get<int64_t>(),
                     .sample_position = json.at("sample_position").get<uint64_t>(),
                     .tokens = json.at("tokens").get<int64_t>(),
                     .loss = json.value("loss", 0.0),
                     .val_loss = json.value("val_loss", 0.0),
                     .val_step = json.value("val_step", int64_t{0}),
                     .best_val_loss = json.at("best_val_loss").get<double>(),
                     .best_val_step = json.at("best_val_step").get<int64_t>()};
    const int64_t before = json.value("tokens_per_step", session.tokens_per_step());
    if (before != session.tokens_per_step()) {
      resumed.notes.push_back(fmt::format(
          "steps were of {} tokens before and are of {} now; with training.global_batch_size they "
          "do not depend on the number of ranks",
          before, session.tokens_per_step()));
    }
    load_weights(engine.device(), engine.model(), TensorSource(folder / kModelFile));
    load_optimizer_files(folder, engine);
    load_control(engine.optimizer(), json);
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

/// Throws CheckpointError where a file is missing, the state cannot be true or a weight is not
/// finite.
void check_content(const std::filesystem::path& folder) {
  const CheckpointManifest manifest = verify_checkpoint(folder, Verify::sizes);
  require_files(folder, manifest);
  try {
    check_state(nlohmann::json::parse(read_checkpoint_text(folder, kStateFile)), manifest, folder);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", (folder / kStateFile).string(), error.what()));
  }
  const TensorSource source(folder / kModelFile);
  for (const std::string& name : source.names()) {
    source.read_f32(name, source.find(name)->shape);
  }
}

int64_t newest_step(const std::filesystem::path& root, std::vector<std::string>& notes) {
  const std::optional<CheckpointPlace> place = newest_valid(root, notes, check_content);
  return place ? place->step : notes.empty() ? kNothing : kDamaged;
}

}  // namespace

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
