#include "checkpoint_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "engine/dry_run.h"
#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/run_directory.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "optim/registry.h"
#include "train/checkpoint/scaling_file.h"
#include "train/checkpoint/weights.h"
#include "train/rank_device.h"
#include "train/session.h"

namespace fp8train {

namespace fs = std::filesystem;

namespace {

bool has_delayed_scales(const PrecisionPlan& plan) {
  return plan.any_operand(
      [](const TensorFormat& format) { return format.policy == ScalePolicy::delayed; });
}

}  // namespace

fs::path find_model_folder(const fs::path& path) {
  if (has_file(path / "config.json")) {
    refuse_incomplete(path);
    return path;
  }
  const fs::path root = fs::exists(path / "checkpoints") ? path / "checkpoints" : path;
  std::vector<std::string> skipped;
  const std::optional<CheckpointFolder> newest =
      fs::is_directory(root) ? newest_valid(root, skipped) : std::nullopt;
  for (const std::string& note : skipped) {
    log_warning(note);
  }
  if (!newest && !skipped.empty()) {
    throw CheckpointError(
        fmt::format("{}: {} damaged; the warning{} above say{} how", path.string(),
                    skipped.size() == 1 ? "its only checkpoint is" : "all of its checkpoints are",
                    skipped.size() == 1 ? "" : "s", skipped.size() == 1 ? "s" : ""));
  }
  if (const std::vector<std::string> runs = runs_in(path); !newest && !runs.empty()) {
    throw CheckpointError(fmt::format("{} is not a run, but holds some; name one of them: {}",
                                      path.string(), fmt::join(runs, " ")));
  }
  if (!newest) {
    const std::string what = describe_other_folder(path);
    throw CheckpointError(
        fmt::format("{} is neither a model folder (config.json, model.safetensors) nor a run "
                    "directory with a checkpoint{}{}",
                    path.string(), what.empty() ? "" : ": ", what));
  }
  return newest->path;
}

fs::path find_whole_model(const fs::path& path) {
  fs::path folder = find_model_folder(path);
  if (is_checkpoint(folder)) {
    verify_checkpoint(folder);
  }
  return folder;
}

void add_checkpoint_options(Arguments command, CheckpointRequest& request) {
  command.required_path("checkpoint,--checkpoint CHECKPOINT", request.path,
                        "Run directory, checkpoint or Hugging Face folder");
  command.option("--plan", request.plan, "Precision plan to run in, whatever it was trained in");
  command.path("--tokenizer PATH", request.tokenizer, "Tokenizer, when the folder has none");
  command.option("--device", request.device, "cpu, cuda or auto");
  command.option("--threads", request.threads, 0, "0: all cores");
}

CheckpointFacts describe_checkpoint(const CheckpointRequest& request) {
  CheckpointFacts facts;
  facts.folder = find_model_folder(request.path).string();
  const std::string tokenizer = request.tokenizer.empty() ? facts.folder : request.tokenizer;
  facts.tokenizer = make_tokenizer(
      tokenizer, [] { return std::string(); },  // a model folder's tokenizer needs no text
      "--tokenizer");
  HfConfig config = read_hf_config(facts.folder);
  for (const std::string& note : config.notes) {
    log_warning(facts.folder + "/config.json: " + note);
  }
  facts.model = completed(config.model);
  facts.eos_token_ids = read_end_tokens(facts.folder, config);
  if (facts.tokenizer->vocab_size() > facts.model.vocab_size) {
    throw ConfigError(fmt::format("the tokenizer {} has {} ids, but the model's vocab_size is {}",
                                  tokenizer, facts.tokenizer->vocab_size(),
                                  facts.model.vocab_size));
  }
  facts.longest_sequence = longest_sequence(facts.model);
  return facts;
}

CheckpointModel open_checkpoint(const CheckpointRequest& request) {
  const fs::path folder = find_whole_model(request.path);
  CheckpointRequest of_folder = request;
  of_folder.path = folder.string();
  CheckpointModel opened(describe_checkpoint(of_folder));
  EngineSettings settings;
  settings.model = opened.model;
  settings.plan = plan_named(request.plan, "--plan");
  settings.step = request.step;
  const int64_t longest = opened.longest_sequence;
  int64_t& length = settings.step.seq_length;
  length = length == 0 ? longest : length;
  if (length < 0 || length > longest) {
    throw ConfigError(fmt::format("--seq-length must be between 1 and {}: {}", longest,
                                  longest_sequence_reason(settings.model)));
  }
  configure_threads(request.threads);
  std::string reason;
  opened.device = choose_device(device_choice_named(request.device), false, reason);
  const bool delayed = has_delayed_scales(settings.plan);
  const ParameterFormats stored = parameter_formats(settings.plan);
  if (stored.value == TensorFormat{} && stored.gradient == TensorFormat{}) {
    settings.optimizer = stateless_optimizer();
  }
  const auto make_engine = [&](bool has_scales) {
    opened.has_scales = has_scales;
    settings.trains = !has_scales;  // scales are found by a forward and backward pass
    opened.engine.reset();
    opened.engine = std::make_unique<Engine>(*opened.device, settings);
    if (delayed && has_scales) {
      load_scaling(folder, opened.engine->model().scaling(), 0, 1);
    }
  };
  try {
    make_engine(!delayed || has_scaling(folder));
  } catch (const OtherScales&) {
    log_warning(
        fmt::format("{}: its scales are of other layers or histories than those of {}: not "
                    "read",
                    folder.string(), request.plan));
    make_engine(false);
  }
  opened.engine->reserve(plan_weights(settings, opened.device->traits()));
  load_weights(*opened.device, opened.engine->model(), TensorSource(folder));
  opened.engine->weights_changed();
  return opened;
}

}  // namespace fp8train
