#include "train/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/key_error.h"
#include "base/machine.h"
#include "base/math.h"
#include "config/load.h"
#include "config/model_folder.h"
#include "data/chat/chat_template.h"
#include "data/folder_files.h"
#include "data/tokenizers/registry.h"
#include "device/cuda/cuda_device.h"
#include "io/checkpoint/checkpoint.h"
#include "io/hf_config.h"
#include "ops/gemm/gemm.h"
#include "optim/registry.h"
#include "precision/linear_plan.h"
#include "train/probed_products.h"

namespace fp8train {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 30;  // tokens of a micro-batch

/// Throws ConfigError where the tokenizer has more tokens than the model.
void check_vocabulary(const ModelConfig& model, const Settings& settings,
                      const Tokenizer& tokenizer) {
  const std::string& from = settings.model.from;
  const std::string& name = settings.data.tokenizer;
  const int64_t ids = tokenizer.vocab_size();
  if (model.vocab_size >= ids) {
    return;
  }
  if (from.empty()) {
    throw KeyError("model.vocab_size",
                   fmt::format(" is {}, but the tokenizer has {} ids; use at least that many",
                               model.vocab_size, ids));
  }
  if (!tokenizers::has_tokenizer(from)) {
    throw KeyError(
        "data.tokenizer",
        fmt::format(": '{}'{} has {} tokens, but the model of {} has {}, and that folder has no "
                    "tokenizer; set data.tokenizer to the tokenizer of the model, or "
                    "model.resize_vocabulary: {} to add tokens to the model",
                    name, name == DataSettings().tokenizer ? " (the default)" : "", ids, from,
                    model.vocab_size, ids));
  }
  throw ConfigError(fmt::format(
      "the model of {} has {} tokens, but the tokenizer has {}; model.resize_vocabulary: {} adds "
      "the others to the model",
      from, model.vocab_size, ids, ids));
}

ModelConfig resolve_model(Session& session) {
  const ModelSettings& settings = session.settings.model;
  const Tokenizer& tokenizer = *session.tokenizer;
  ModelConfig model = settings.config;
  if (!settings.from.empty()) {
    if (!std::filesystem::exists(settings.from)) {
      throw Keyed<CheckpointError>(
          "model.from",
          fmt::format(": there is no folder {}; models are not downloaded: fetch it, for "
                      "example with `hf download NAME --local-dir FOLDER`, and name the folder",
                      settings.from));
    }
    if (!has_file(std::filesystem::path(settings.from) / "config.json")) {
      const std::string what = describe_other_folder(settings.from);
      throw Keyed<CheckpointError>(
          "model.from",
          fmt::format(": {} has no config.json, which every model folder has; {}", settings.from,
                      what.empty()
                          ? "name a checkpoint of a run, or a folder in the form of transformers"
                          : what));
    }
    HfConfig read = read_hf_config(settings.from);
    model = read.model;
    const auto add_notes = [&](const std::vector<std::string>& notes, SessionNote::Kind kind) {
      for (const std::string& note : notes) {
        session.note(FileRemark{settings.from + "/config.json: " + note}, kind);
      }
    };
    add_notes(read.notes, SessionNote::Kind::warning);
    add_notes(read.training_notes, SessionNote::Kind::warning_of_training);
    add_notes(read.copying_notes, SessionNote::Kind::warning_of_training);
    session.source = {std::move(read.fields), read_part(settings.from, FolderPart::model)};
    if (const std::string note = note_left_out(settings.from);
        !note.empty() && !is_checkpoint(settings.from)) {
      session.note(FileRemark{"model.from: " + note}, SessionNote::Kind::choice_of_training);
    }
    if (settings.resize_vocabulary > 0 && settings.resize_vocabulary < model.vocab_size) {
      throw KeyError("model.resize_vocabulary",
                     fmt::format(" is {}, but the model of {} has {} tokens; tokens are only added",
                                 settings.resize_vocabulary, settings.from, model.vocab_size));
    }
    model.vocab_size = std::max(model.vocab_size, settings.resize_vocabulary);
  } else if (tokenizer.vocab_size() > 0) {
    model.bos_token_id = tokenizer.bos_id();  // the data's, not those of the preset's own tokenizer
    model.eos_token_id = tokenizer.eos_id();
  }
  if (model.vocab_size == 0) {
    model.vocab_size = tokenizer.vocab_size();
  }
  if (model.vocab_size == 0) {
    throw KeyError("model.vocab_size", " is needed, because data.tokenizer: none does not give it");
  }
  check_vocabulary(model, session.settings, tokenizer);
  return with_adapters(session, completed(model));
}

/// All that a pass could save, generously: what is beyond could not be counted in 64 bits.
void check_activations(const EngineSettings& engine) {
  const int64_t rows = engine.rows_of_rank();
  double widths = 0.0;
  for_each_linear(engine.model, [&](const LinearSite& site) {
    widths += site.token_share * static_cast<double>(site.in_features + site.out_features);
  });
  const double bytes = 32.0 * static_cast<double>(rows) * widths;
  constexpr double kMaxBytes = 1e18;
  if (bytes > kMaxBytes) {
    throw ConfigError(
        fmt::format("a pass of {} tokens (training.micro_batch_size {} * data.seq_length {}) "
                    "through this model has more than 10^18 bytes of activations",
                    rows, engine.step.micro_batch_size, engine.step.seq_length));
  }
}

void check_batch(const EngineSettings& engine) {
  const StepSettings& step = engine.step;
  if (step.seq_length > longest_sequence(engine.model)) {
    throw KeyError(
        "data.seq_length",
        fmt::format(
            " {} is longer than {}; shorten it{}", step.seq_length,
            longest_sequence_reason(engine.model),
            engine.model.sliding_window > 0 ? "" : " or set model.max_position_embeddings"));
  }
  if (step.micro_batch_tokens() > kMaxRows) {
    throw KeyError("training.micro_batch_size",
                   fmt::format(" {} * data.seq_length {} is more than {} tokens; lower the "
                               "micro-batch and raise training.gradient_accumulation_steps",
                               step.micro_batch_size, step.seq_length, kMaxRows));
  }
  check_activations(engine);
  plan_linears(engine.plan, linear_sites(engine.model));  // patterns that match nothing throw
}

/// The settings with which a global batch can be divided among so many ranks.
std::string divisible_batch(int64_t sequences, int64_t ranks, int64_t micro_batch_size) {
  if (sequences % ranks != 0) {
    const int64_t multiple = ranks * micro_batch_size;
    return fmt::format("set training.global_batch_size: {}",
                       ceil_div(sequences, multiple) * multiple);
  }
  int64_t size = std::min(micro_batch_size, sequences / ranks);
  while ((sequences / ranks) % size != 0) {
    --size;
  }
  return fmt::format("set training.micro_batch_size: {}", size);
}

/// Divides the micro-batches of a global batch among the ranks of the data axis.
void share_global_batch(const TrainingSettings& training, int data_ranks, StepSettings& step) {
  if (training.global_batch_size == 0) {
    return;
  }
  if (step.gradient_accumulation_steps % data_ranks != 0) {
    throw KeyError(
        "training.global_batch_size",
        fmt::format(
            ": {} sequences are not a multiple of {} ranks x training.micro_batch_size {}; {}",
            training.global_batch_size, data_ranks, step.micro_batch_size,
            divisible_batch(training.global_batch_size, data_ranks, step.micro_batch_size)));
  }
  step.gradient_accumulation_steps /= data_ranks;
}

/// Layers whose weights are stored as the plan's roles say in one stage and in fp32 in another.
void check_exempt_alike(const Session& session, const PrecisionPlan& other) {
  const std::vector<LinearSite> sites = linear_sites(session.engine.model);
  const PrecisionPlan& first = session.stages.front().plan;
  const std::vector<LinearPlan> here = plan_linears(first, sites);
  const std::vector<LinearPlan> there = plan_linears(other, sites);
  const bool all_fp32 = parameter_formats(other) == ParameterFormats{};
  for (size_t i = 0; i < sites.size() && !all_fp32; ++i) {
    if (here[i].exempt_reason.empty() != there[i].exempt_reason.empty()) {
      throw KeyError(
          "precision.schedule",
          fmt::format(": {} is exempt in only one of '{}' and '{}' ({}), and what is stored of its "
                      "weight would change during the run: exempt it in both (fp8.exempt)",
                      sites[i].name, first.name, other.name,
                      here[i].exempt_reason + there[i].exempt_reason));
    }
  }
}

void check_stages(const Session& session) {
  for (size_t i = 0; i < session.stages.size(); ++i) {
    check_batch(session.engine_of(i));
    check_exempt_alike(session, session.stages[i].plan);
  }
  if (session.stages.size() > 1 &&
      session.settings.training.on_divergence == OnDivergence::rollback) {
    throw KeyError("training.on_divergence",
                   ": rollback goes back to a checkpoint of the same plan, and precision.schedule "
                   "has several scaled plans: set it to stop");
  }
}

}  // namespace

size_t Session::stage_after(int64_t steps) const {
  size_t stage = 0;
  while (stage + 1 < stages.size() && steps >= stages[stage].end) {
    ++stage;
  }
  return stage;
}

EngineSettings Session::engine_of(size_t stage) const {
  EngineSettings settings_of_stage = engine;
  settings_of_stage.plan = stages[stage].plan;
  settings_of_stage.plain_steps = stages[stage].plain_steps;
  return settings_of_stage;
}

void Session::enter_stage(size_t stage) {
  engine = engine_of(stage);
}

void set_length(Session& session) {
  constexpr int64_t kAnyLength = int64_t{1} << 52;
  Settings& settings = session.settings;
  session.max_steps = resolve_max_steps(settings.training, session.engine.step, session.data_ranks,
                                        session.epoch_samples);
  if (settings.notes.default_warmup && settings.scheduler.warmup_steps == 0) {
    settings.scheduler.warmup_steps = continued_warmup(session.max_steps);
    if (session.max_steps > 0) {
      session.note(SessionFact::default_warmup, SessionNote::Kind::choice);
    }
  }
  session.stages =
      run_stages(settings.precision, session.max_steps > 0 ? session.max_steps : kAnyLength);
  check_stages(session);
  session.enter_stage(0);
}

EngineSettings engine_settings(const Settings& settings, const ModelConfig& model) {
  EngineSettings engine = {
      .model = model,
      .plan = resolve_plan(settings.precision),
      .optimizer = settings.optimizer,
      .step = settings.step,
      .loss_history = settings.training.spike_threshold > 0 ? kLossHistory : 0};
  StrategySettings& strategy = engine.strategy;
  strategy = static_cast<const StrategySettings&>(settings.parallelism);
  if (strategy.bucket_bytes == 0) {
    strategy.bucket_bytes = default_bucket_bytes(static_cast<double>(parameter_count(model)) *
                                                 bytes_per_parameter(engine.plan).gradient);
  }
  check_batch(engine);
  if (model.moe.experts == 0 && settings.model.from.empty()) {
    engine.step.decoder.moe = {};  // a preset may have had some
  } else if (model.moe.experts == 0 && settings.step.decoder.moe != MoeSettings{}) {
    throw KeyError("moe", ": the model has no experts; remove the section");
  }
  if (settings.precision.recompute_swiglu.value_or(false) && model.mlp != MlpKind::swiglu) {
    throw KeyError("precision.recompute_swiglu",
                   ": true has no meaning for this model: its MLP is not a SwiGLU; remove it");
  }
  if (settings.parallelism.layout.context > 1 &&
      engine.plan.attention.gemms() != Fp8Attention::none) {
    throw KeyError("parallelism.context",
                   ": attention in FP8 takes 1; remove it, or fp8.attention");
  }
  return engine;
}

namespace {

/// Reads parallelism.schedule_file, if there is one, into ParallelLayout::given_schedule. The
/// error's message names its line, stage and action where it is no schedule of the layout.
void read_schedule_file(int64_t micro_batches, ParallelLayout& layout) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  const char* const key = "parallelism.schedule_file";
  const std::string& file = layout.schedule_file;
  if (file.empty()) {
    return;
  }
  std::string text;
  try {
    text = read_text_file(file, kMaxBytes);
  } catch (const DataError& error) {
    throw KeyError(key, std::string(": ") + error.what());  // a part of the configuration
  }
  layout.given_schedule = keyed<ConfigError>(
      key,
      [&] {
        PipelineSchedule schedule = read_schedule(text);
        check_schedule(schedule, layout.pipeline_shape(micro_batches));
        return schedule;
      },
      file + ": ");
}

Session resolve(const Settings& settings, bool open_data, int ranks) {
  Session session;
  session.ranks = ranks;
  session.settings = settings;
  ParallelLayout& layout = session.settings.parallelism.layout;
  layout = ranks == 1 ? ParallelLayout{.tensor_parts = layout.tensor_parts} : layout;
  if (layout != settings.parallelism.layout && !open_data) {
    session.note(SessionFact::whole_model_on_one_rank);
  }
  const int data_ranks = mesh_shape(layout, Topology::blocks(ranks, ranks)).data;
  session.data_ranks = data_ranks;
  session.tokenizer = make_tokenizer(settings.data);
  add_chat_template(*session.tokenizer, settings.data.chat_template);
  session.engine = engine_settings(session.settings, resolve_model(session));
  share_global_batch(settings.training, data_ranks, session.engine.step);
  read_schedule_file(session.engine.step.gradient_accumulation_steps,
                     session.engine.strategy.layout);
  note_other_tokenizer(session);
  if (settings.notes.processes > 0 && settings.notes.processes != ranks) {
    session.note(SessionFact::other_processes);
  }
  const int64_t state_ranks = data_ranks * layout.context;  // Group::state
  if (state_ranks == 1 && settings.parallelism.zero_stage > 0) {
    session.note(SessionFact::unused_zero_stage);
  }
  const bool repeats = (state_ranks > 1 && settings.parallelism.zero_stage == 0) ||
                       layout.tensor > 1;  // parts of one matrix
  if (repeats && settings.gemm_tuning &&
      optimizer_named(settings.optimizer.name).repeats_products) {
    throw KeyError("gemm_tuning",
                   fmt::format(": with optimizer.name {} every rank must multiply alike, and each "
                               "would choose algorithms of its own; set gemm_tuning: false{}",
                               settings.optimizer.name,
                               layout.tensor > 1 ? "" : ", or parallelism.zero_stage: 1"));
  }
  set_length(session);
  note_nothing_scaled(session);
  if (settings.sample.interval > 0) {
    add_samples(session);
  }
  if (open_data) {
    open_corpora_of(session);
  } else if (settings.training.max_epochs > 0) {
    session.note(SessionFact::unknown_steps, SessionNote::Kind::choice);
  }
  if (session.max_steps > 0) {
    note_schedule(session);
  }
  return session;
}

}  // namespace

Session open_session(const Settings& settings, bool open_data, int ranks) {
  return with_locations(settings, [&] { return resolve(settings, open_data, ranks); });
}

std::unique_ptr<Device> choose_device(DeviceChoice choice, bool tune_gemms, std::string& reason,
                                      int gpu) {
  DeviceKind kind = choice == DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu;
  reason = kind == DeviceKind::cuda ? "device: cuda" : "device: cpu";
  if (choice == DeviceChoice::automatic) {
    const std::string obstacle = why_cuda_is_unusable(gpu);
    reason = obstacle.empty()   ? "a usable GPU was found"
             : has_nvidia_gpu() ? obstacle
                                : "no NVIDIA GPU";
    kind = obstacle.empty() ? DeviceKind::cuda : DeviceKind::cpu;
  }
  std::unique_ptr<Device> device = make_device(kind, gpu);
  find_products(*device, cache_folder());
  if (tune_gemms) {
    ops::tune_gemms(*device, cache_folder().string());
  }
  return device;
}

}  // namespace fp8train
