#include "train/training_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "train/weights.h"

namespace fp8train {
namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kScalingFile = "scaling.safetensors";
constexpr const char* kStateFile = "state.json";

TensorBytes bytes_of(const HostTensor& tensor) {
  return {tensor.name, DType::f32, tensor.shape, tensor.values.data()};
}

std::vector<int64_t> extents(const Shape& shape) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < shape.rank(); ++i) {
    result.push_back(shape[i]);
  }
  return result;
}

/// A tensor of the optimizer's file, as it is kept.
struct StateTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  View place;  // on the device
};

/// "NAME" in the tensor's own type and, beside a scaled one, "NAME.scale".
void add_stored(std::vector<StateTensor>& tensors, const std::string& name,
                const StoredTensor& stored) {
  if (stored.empty()) {
    return;
  }
  tensors.push_back({name, stored.codes.dtype, extents(stored.codes.shape), stored.codes});
  if (!stored.scales.empty()) {
    const bool single = stored.format.granularity == Granularity::tensor;
    const View scales = single ? View{stored.scales.data, DType::f32, {1}} : stored.scales;
    tensors.push_back({name + ".scale", DType::f32, extents(scales.shape), scales});
  }
}

/// Per parameter, in this program's names and storage shapes: its moments, its value where
/// model.safetensors has not the codes of it, and the factor of its automatic scaling.
std::vector<StateTensor> optimizer_tensors(Engine& engine) {
  std::vector<StateTensor> tensors;
  const Optimizer& optimizer = engine.optimizer();
  const auto& parameters = engine.model().parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) {
    add_stored(tensors, "moment1." + parameters[i]->name, optimizer.moment1(i));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    add_stored(tensors, "moment2." + parameters[i]->name, optimizer.moment2(i));
  }
  for (const auto& parameter : parameters) {
    if (parameter->value.empty()) {
      add_stored(tensors, "value." + parameter->name, parameter->stored_value);
    }
    if (parameter->automatic != nullptr) {
      const View factor = {&parameter->automatic->factor, DType::f32, {1}};
      add_stored(tensors, "gradient." + parameter->name + ".factor", factor);
    }
  }
  return tensors;
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
                                 {"applied_steps", control.applied_steps}};
  return json.dump(1) + "\n";
}

CheckpointFile tensor_file(const char* name, const std::vector<HostTensor>& tensors) {
  CheckpointFile file = {.name = name, .tensors = {}, .text = {}};
  for (const HostTensor& tensor : tensors) {
    file.tensors.push_back(bytes_of(tensor));
  }
  return file;
}

void load_optimizer(const std::filesystem::path& folder, Engine& engine,
                    const nlohmann::json& json) {
  const SafetensorsFile file(folder / kOptimizerFile);
  const TensorSource source(folder / kOptimizerFile);
  std::vector<uint8_t> bytes;
  for (const StateTensor& tensor : optimizer_tensors(engine)) {
    if (tensor.dtype == DType::f32) {
      const std::vector<float> values = source.read_f32(tensor.name, tensor.shape);
      copy_from_host(engine.device(), tensor.place, values.data());
      continue;
    }
    const SafetensorsEntry* entry = file.find(tensor.name);
    if (entry == nullptr || entry->shape != tensor.shape ||
        entry->dtype != safetensors_name(tensor.dtype)) {
      throw CheckpointError(fmt::format("{}: there is no tensor '{}' of type {} and shape [{}]",
                                        file.path().string(), tensor.name, name_of(tensor.dtype),
                                        fmt::join(tensor.shape, ", ")));
    }
    bytes.resize(entry->bytes());
    file.read(*entry, bytes.data());
    copy_from_host(engine.device(), tensor.place, bytes.data());
  }
  ops::StepControl control = engine.optimizer().control();
  control.loss_scale = json.at("loss_scale").get<float>();
  control.good_steps = json.at("good_steps").get<int32_t>();
  control.skipped_steps = json.at("skipped_steps").get<int64_t>();
  control.applied_steps = json.at("applied_steps").get<int64_t>();
  engine.optimizer().set_control(control);
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

}  // namespace

std::filesystem::path save_training_state(const std::filesystem::path& root, Engine& engine,
                                          const Session& session, const TrainingState& state,
                                          int64_t keep_last) {
  std::vector<HostTensor> weights;
  for_each_weight(engine, [&](const HostTensor& tensor) { weights.push_back(tensor); });
  CheckpointFile moments = {.name = kOptimizerFile, .tensors = {}, .text = {}};
  std::vector<std::vector<uint8_t>> moment_bytes;
  for (const StateTensor& tensor : optimizer_tensors(engine)) {
    moment_bytes.emplace_back(tensor.place.bytes());
    copy_to_host(engine.device(), moment_bytes.back().data(), tensor.place);
    moments.tensors.push_back(
        {tensor.name, tensor.dtype, tensor.shape, moment_bytes.back().data()});
  }
  std::vector<HostTensor> scaling;
  for (ScalingState::SavedTensor& tensor : engine.model().scaling().save()) {
    scaling.push_back({tensor.name, tensor.shape, std::move(tensor.values)});
  }
  CheckpointContents contents;
  contents.run_id =
      fmt::format("{}-{}", session.settings.training.seed, session.data.train.fingerprint());
  contents.files = {
      {"config.json", {}, write_hf_config(session.engine.model, DType::f32)},
      {"tokenizer.json", {}, session.tokenizer->to_json()},
      {kStateFile, {}, state_text(engine, session, state)},
      tensor_file(kModelFile, weights),
      moments,
  };
  if (!scaling.empty()) {
    contents.files.push_back(tensor_file(kScalingFile, scaling));
  }
  std::filesystem::path folder = save_checkpoint(root, state.step, contents);
  retain_checkpoints(root, static_cast<int>(keep_last));
  return folder;
}

ResumedRun resume_from(const std::filesystem::path& folder, Engine& engine,
                       const Session& session) {
  verify_checkpoint(folder);
  ResumedRun resumed;
  resumed.folder = folder;
  try {
    const nlohmann::json json = nlohmann::json::parse(read_checkpoint_text(folder, kStateFile));
    check_same_model(session, folder);
    check_same_run(json, session, engine.model(), folder);
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
      resumed.note = fmt::format(
          "steps were of {} tokens before and are of {} now; with training.global_batch_size they "
          "do not depend on the number of ranks",
          before, session.tokens_per_step());
    }
    load_weights(engine.device(), engine.model(), TensorSource(folder / kModelFile));
    load_optimizer(folder, engine, json);
    load_scaling(folder, engine.model().scaling());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", (folder / kStateFile).string(), error.what()));
  }
  return resumed;
}

std::optional<ResumedRun> resume_newest(const std::filesystem::path& root, Engine& engine,
                                        const Session& session, std::vector<std::string>& notes) {
  const std::optional<CheckpointPlace> place = newest_valid(root, notes);
  if (!place) {
    if (notes.empty()) {
      return std::nullopt;
    }
    std::string message =
        "none of the run's checkpoints can be used, and a new run would write "
        "over them; set another output_dir, or remove " +
        root.string();
    for (const std::string& note : notes) {
      message += "\n  " + note;
    }
    throw CheckpointError(message);
  }
  return resume_from(place->path, engine, session);
}

}  // namespace fp8train
