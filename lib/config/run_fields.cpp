// Data, training and everything around a run.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "config/field_builders.h"
#include "config/field_table.h"
#include "data/readers/data_format.h"

namespace fp8train {
namespace {

bool on_several_ranks(const Settings& settings) {
  return settings.job.nodes * settings.job.ranks_per_node > 1;
}

using namespace fields;

constexpr double kMostPasses = 1 << 20;     // micro-batch, and micro-batches of a step
constexpr double kMostSequences = 1 << 30;  // of a step
constexpr double kMostTokens = 1e15;        // of a run
constexpr double kMostPositions = ModelLimits::positions;
constexpr double kMostThreads = 1024;

template <class Member>
auto data(Member member) {
  return in(&Settings::data, member);
}

template <class Member>
auto training(Member member) {
  return in(&Settings::training, member);
}

Field sources(std::string key, std::vector<DataSource> DataSettings::*member, std::string doc) {
  return make(std::move(key), "a list of {path, format, weight}", std::move(doc), data(member),
              read_sources, [](const std::vector<DataSource>& values) {
                return values.empty() ? "" : sources_text(values);
              });
}

// What the wizard offers where the default of the field is no good start.

std::string offered_validation(const Settings& settings) {
  return number_text(settings.data.val_fraction > 0 ? settings.data.val_fraction : 0.05);
}

/// That of the folder a model comes from.
std::string offered_tokenizer(const Settings& settings) {
  const std::filesystem::path folder = settings.model.from;
  std::error_code unseen;
  const bool has_one =
      !folder.empty() && (std::filesystem::exists(folder / "tokenizer.json", unseen) ||
                          std::filesystem::exists(folder / "tokenizer.model", unseen));
  return has_one && settings.data.tokenizer == DataSettings().tokenizer ? folder.string()
                                                                        : settings.data.tokenizer;
}

/// No more than the model of a folder is made for.
std::string offered_length(const Settings& settings) {
  int64_t length = settings.data.seq_length;
  std::ifstream file(std::filesystem::path(settings.model.from) / "config.json");
  if (!settings.model.from.empty() && file) {
    const auto config = nlohmann::json::parse(file, nullptr, false);
    for (const char* key : {"max_position_embeddings", "n_positions"}) {
      if (config.is_object() && config.contains(key) && config[key].is_number_integer()) {
        length = std::min(length, std::max<int64_t>(1, config[key].get<int64_t>()));
      }
    }
  }
  return std::to_string(length);
}

std::string offered_steps(const Settings& settings) {
  return settings.training.max_tokens > 0 ? "" : "1000";
}

std::string offered_global_batch(const Settings& settings) {
  return std::to_string(settings.training.micro_batch_size * settings.job.nodes *
                        settings.job.ranks_per_node);
}

std::string offered_interval(const Settings& settings) {
  return std::to_string(std::clamp<int64_t>(planned_steps(settings) / 10, 1, 1000));
}

/// "auto" or a whole number.
Field checkpoint_interval() {
  const Range range = bounded(at_least(0), kMostWhole);
  Field field = make(
      "checkpoint.interval", "a whole number" + range.text() + ", or auto",
      "Steps between checkpoints; 0: only at the end and on a stop signal; auto: as often as loses "
      "the least time, from the time that saves take and job.mtbf",
      in(&Settings::checkpoint, &CheckpointSettings::interval),
      [range](const FieldValue& value, const std::string& what) {
        const YamlNode& node = value.node();
        return node.kind == YamlNode::Kind::scalar && node.text == "auto"
                   ? std::optional(kAutomaticInterval)
                   : read_integer(value, range, what);
      },
      [](int64_t value) {
        return value == kAutomaticInterval ? std::string("auto") : std::to_string(value);
      });
  return with_range(std::move(field), range, true);
}

std::vector<Field> checkpoint_fields() {
  const auto checkpoint = [](auto member) { return in(&Settings::checkpoint, member); };
  return {
      checkpoint_interval().asked({.topic = Topic::checkpoints,
                                   .text = "Steps between checkpoints",
                                   .suggest = offered_interval}),
      flag("checkpoint.async", checkpoint(&CheckpointSettings::async),
           "Training continues while a copy of its state is written; false: it waits. One "
           "checkpoint "
           "is written at a time: one that is due earlier waits"),
      integer("checkpoint.max_failed_saves", checkpoint(&CheckpointSettings::max_failed_saves),
              at_least(1),
              "Saves in a row that may fail, as on a full disk, before the run ends with exit code "
              "4"),
      integer("checkpoint.keep_last", checkpoint(&CheckpointSettings::keep_last), between(1, 1e6),
              "Newest checkpoints of checkpoint.interval that are not deleted; the newest of all "
              "never is")
          .asked({.topic = Topic::checkpoints, .text = "Checkpoints to keep"}),
      integer("checkpoint.keep_every", checkpoint(&CheckpointSettings::keep_every), at_least(0),
              "Nor are those whose step is a multiple of this; 0: none"),
      integer(
          "checkpoint.keep_best", checkpoint(&CheckpointSettings::keep_best), at_least(0),
          "Nor are this many with the lowest validation loss, that of the last evaluation at or "
          "before their step; of several with the same evaluation the first one counts"),
      path("checkpoint.resume", checkpoint(&CheckpointSettings::resume),
           "auto continues from the newest complete checkpoint, never starts afresh, a path "
           "continues from that one",
           "auto, never or a checkpoint directory")
          .asked({.topic = Topic::checkpoints, .text = "Resume"}),
      flag("checkpoint.save_final", checkpoint(&CheckpointSettings::save_final),
           "Save a checkpoint after the last step"),
      choice("checkpoint.changed_data", checkpoint(&CheckpointSettings::changed_data), kOnChange,
             "What to do when a run goes on and its data files are not those that the checkpoint "
             "was saved with; accept names them in a warning"),
      choice("checkpoint.changed_plan", checkpoint(&CheckpointSettings::changed_plan), kOnChange,
             "What to do when a run continues from a checkpoint of another precision plan; accept "
             "rounds weights and moments to the formats of the new one, whose scaling begins as at "
             "the start of a run"),
  };
}

}  // namespace

std::vector<Field> data_fields() {
  return {
      sources("data.train", &DataSettings::train,
              fmt::format("Training sources: {{path, format: {}, weight}}. A path is a file, a "
                          "folder or a pattern, and starts at the working directory. Where a "
                          "weight is not 1, samples are dealt out to the sources by weight; else "
                          "sources follow one another",
                          fmt::join(data_format_names(), "|")))
          .asked({.topic = Topic::data, .text = "Training data: a file, or [file, file]"}),
      sources("data.val", &DataSettings::val,
              "Validation sources; not set: val_fraction of the training sources"),
      number("data.val_fraction", data(&DataSettings::val_fraction), from_up_to(0, 1),
             "Part of the training sources that is held back for validation")
          .asked({.topic = Topic::data,
                  .text = "Part held back for validation",
                  .unless = {"data.val"},
                  .suggest = offered_validation}),
      path(
          "data.tokenizer", data(&DataSettings::tokenizer),
          "byte, char, the path of a tokenizer file or of a folder that has one, or none for token "
          "files made elsewhere",
          "text")
          .asked({.topic = Topic::data,
                  .text = "Tokenizer",
                  .suggest = offered_tokenizer,
                  .changes_memory = true}),
      integer("data.seq_length", data(&DataSettings::seq_length), between(1, kMostPositions),
              "Tokens of one sequence; a preset brings its own default")
          .asked({.topic = Topic::data,
                  .text = "Sequence length",
                  .suggest = offered_length,
                  .changes_memory = true}),
      flag("data.shuffle", data(&DataSettings::shuffle),
           "Windows in random order; false: in the order of the files"),
      text("data.text_key", data(&DataSettings::text_key), "JSONL: the key that holds the text"),
      choice("data.chat_template", data(&DataSettings::chat_template), kChatTemplates,
             "Dialogues: the template that they are written in; auto: that of the tokenizer's "
             "folder"),
      choice("data.packing", data(&DataSettings::packing), kPackings,
             "What a sequence holds: windows of the running text; whole documents, which do not "
             "see each other; none: one document. auto: documents for dialogues, else windows"),
      flag("data.document_mask", data(&DataSettings::document_mask),
           "Windows: attention and positions begin anew behind each end-of-sequence token"),
  };
}

std::vector<Field> training_fields() {
  std::vector<Field> result = {
      optional_count("training.max_steps", training(&TrainingSettings::max_steps), kMostWhole,
                     "Optimizer steps of the whole run; either this or max_tokens")
          .asked({.topic = Topic::optimization,
                  .text = "Optimizer steps, - to give tokens instead",
                  .suggest = offered_steps,
                  .optional = true}),
      optional_count("training.max_tokens", training(&TrainingSettings::max_tokens), kMostTokens,
                     "Tokens of the whole run, such as 100M; either this or max_steps")
          .asked({.topic = Topic::optimization,
                  .text = "Tokens of the whole run",
                  .when = [](const Settings& s) { return s.training.max_steps == 0; }}),
      integer("training.micro_batch_size", training(&TrainingSettings::micro_batch_size),
              between(1, kMostPasses), "Sequences per forward pass and rank")
          .asked({.topic = Topic::optimization,
                  .text = "Micro-batch: sequences per forward pass and rank",
                  .changes_memory = true}),
      integer("training.gradient_accumulation_steps",
              training(&TrainingSettings::gradient_accumulation_steps), between(1, kMostPasses),
              "Forward passes per optimizer step")
          .when([](const Settings& s) { return s.training.global_batch_size == 0; }),
      optional_count("training.global_batch_size", training(&TrainingSettings::global_batch_size),
                     kMostSequences,
                     "Sequences per optimizer step over all ranks; instead of "
                     "gradient_accumulation_steps")
          .asked({.topic = Topic::optimization,
                  .text = "Global batch: sequences per step over all ranks",
                  .unless = {"training.gradient_accumulation_steps"},
                  .suggest = offered_global_batch,
                  .optional = true}),
      make("training.seed", "a whole number >= 0", "Seed of every random draw",
           training(&TrainingSettings::seed), read_unsigned,
           [](uint64_t value) { return std::to_string(value); }),
      number("training.z_loss", training(&TrainingSettings::z_loss), between(0, 1000),
             "Weight of the squared log of the softmax's normalizer in the loss"),
      integer("training.head_chunk_rows", training(&TrainingSettings::head_chunk_rows),
              between(0, kMostSequences),
              "Rows of logits alive at a time; 0: chosen from the vocabulary and the GPU's memory"),
      duration("training.max_time", training(&TrainingSettings::max_time_seconds), "3h50m",
               "Save and stop with exit code 75 after this time", true),
      choice("training.non_finite", training(&TrainingSettings::non_finite), kOnNonFinite,
             "What to do with a step whose gradient norm is not finite"),
      integer("training.max_consecutive_skips", training(&TrainingSettings::max_consecutive_skips),
              at_least(1),
              "Skipped steps in a row after which the run has diverged; at its end, one"),
      choice("training.on_divergence", training(&TrainingSettings::on_divergence), kOnDivergence,
             "stop: exit code 5; rollback: go back to the newest checkpoint of before and leave "
             "out the batches seen since"),
      integer("training.max_rollbacks", training(&TrainingSettings::max_rollbacks), at_least(1),
              "Returns to older checkpoints after which a run that diverges stops"),
      number("training.spike_threshold", training(&TrainingSettings::spike_threshold), at_least(0),
             "Standard deviations above the mean of spike_window losses from which a loss is high; "
             "0: spikes are not looked for"),
      integer("training.spike_window", training(&TrainingSettings::spike_window), between(2, 65536),
              "Steps whose losses, not high themselves, a loss is compared with"),
      integer("training.spike_steps", training(&TrainingSettings::spike_steps), at_least(1),
              "High losses in a row that are a spike, which is a divergence"),
      flag(
          "training.deterministic", training(&TrainingSettings::deterministic),
          "On a GPU with cuDNN: take its deterministic backward pass of attention, which is slower "
          "and on sm_80 to sm_90 needs 2 bytes for each score, so that runs and resumed runs have "
          "the same bits; everything else has them either way"),
  };
  return result;
}

/// Another word for cuda is gpu.
Field device_field() {
  Field field = choice("device", in(&Settings::device), kDeviceChoices,
                       "auto takes a GPU when there is one; gpu means cuda");
  field.read = [read = field.read](Settings& settings, const FieldValue& value) {
    if (simplified(value.node().text) == "gpu") {
      settings.device = DeviceChoice::cuda;
    } else {
      read(settings, value);
    }
  };
  return field;
}

std::vector<Field> run_fields() {
  const auto sample = [](auto member) { return in(&Settings::sample, member); };
  std::vector<Field> result = checkpoint_fields();
  std::vector<Field> others = {
      integer("eval.interval", in(&Settings::eval, &EvalSettings::interval), at_least(0),
              "Steps between evaluations; 0: only at the end"),
      integer(
          "eval.batches", in(&Settings::eval, &EvalSettings::batches), at_least(1),
          "Micro-batches of a periodic evaluation, of all ranks together; the final one covers the "
          "whole split"),
      integer("sample.interval", sample(&SampleSettings::interval), at_least(0),
              "Steps between samples of text; 0: none"),
      texts("sample.prompts", sample(&SampleSettings::prompts), "One sample is drawn per prompt",
            true),
      integer("sample.max_new_tokens", sample(&SampleSettings::max_new_tokens), between(1, 1 << 20),
              "Length of a sample"),
      number("sample.temperature", sample(&SampleSettings::temperature), between(0, 1000),
             "Divides the logits; 0 always takes the likeliest token"),
      integer("sample.top_k", sample(&SampleSettings::top_k), at_least(0),
              "Draw from the k likeliest tokens; 0: from all"),
      number("sample.top_p", sample(&SampleSettings::top_p), {0, 1, true, false},
             "Draw from the likeliest tokens with this total probability"),
      integer("logging.interval", in(&Settings::logging, &LoggingSettings::interval), at_least(1),
              "Steps between progress lines, each with a line of metrics.jsonl"),
      integer("logging.tensor_interval", in(&Settings::logging, &LoggingSettings::tensor_interval),
              at_least(0),
              "Steps between lines of tensors.jsonl, the scales and errors of each tensor that is "
              "cast, in the first step after them that is logged, and in the last step; 0: none"),
      choice("logging.format", in(&Settings::logging, &LoggingSettings::format), kProgressFormats,
             "auto is pretty on a terminal and plain elsewhere"),
      flag("logging.tensorboard", in(&Settings::logging, &LoggingSettings::tensorboard),
           "Write event files for TensorBoard too, into output_dir/tensorboard"),
      choice("comm.backend", in(&Settings::comm, &CommSettings::backend), kCommBackends,
             "What moves bytes between the ranks that mpirun or srun has started. auto: mpi for "
             "ranks on CPUs, nccl for ranks on GPUs where there is one; mpi: on GPUs through host "
             "memory; self: one rank, whatever the launcher says"),
      choice("comm.bootstrap", in(&Settings::comm, &CommSettings::bootstrap), kCommBootstraps,
             "How ranks find each other. file: ranks on GPUs that srun has started, without MPI; "
             "auto is that with backend nccl where srun offers none"),
      path("comm.bootstrap_file", in(&Settings::comm, &CommSettings::bootstrap_file),
           "With bootstrap file: where it is, seen by all nodes; job, step and restart are added. "
           "Empty: rendezvous, in output_dir",
           "a path"),
      duration("comm.timeout", in(&Settings::comm, &CommSettings::timeout_seconds), "10m",
               "A message between ranks that takes longer ends the run"),
      integer(
          "parallelism.zero_stage", in(&Settings::parallelism, &ParallelismSettings::zero_stage),
          between(0, 3),
          "0: each rank keeps all (DDP); 1: ranks share moments and master weights; 2: gradients "
          "too; 3: all weights too (FSDP)")
          .asked({.topic = Topic::parallelism,
                  .text = "What ranks share, 0 (nothing) to 3 (all)",
                  .when = on_several_ranks,
                  .changes_memory = true}),
      integer("parallelism.bucket_mb", in(&Settings::parallelism, &ParallelismSettings::bucket_mb),
              between(1, 65536), "MiB of gradients that ranks exchange at a time"),
      integer("parallelism.check_replicas",
              in(&Settings::parallelism, &ParallelismSettings::check_replicas), at_least(0),
              "Steps after which ranks compare hashes of their weights, as they do before each "
              "checkpoint; one that differs is named and the run ends. 0: never"),
      device_field().asked({.topic = Topic::hardware, .text = "Device", .changes_memory = true}),
      flag("cuda_graphs", in(&Settings::cuda_graphs),
           "On a GPU, record the work of a step once and replay it"),
      flag("gemm_tuning", in(&Settings::gemm_tuning),
           "On a GPU, time the algorithms for each product in the first step and keep the choice "
           "in FP8TRAIN_CACHE_DIR (~/.cache/fp8train); a run repeats bitwise with the same file"),
      integer("threads", in(&Settings::threads), between(0, kMostThreads),
              "CPU threads of a rank; 0: OMP_NUM_THREADS, else SLURM_CPUS_PER_TASK, else its part "
              "of the "
              "cores"),
      path("output_dir", in(&Settings::output_dir), "Where the run's files go", "a folder")
          .asked({.topic = Topic::checkpoints, .text = "Folder for the run's files"}),
  };
  std::move(others.begin(), others.end(), std::back_inserter(result));
  return result;
}

int64_t planned_steps(const Settings& settings) {
  const TrainingSettings& training = settings.training;
  const int64_t ranks = settings.job.nodes * settings.job.ranks_per_node;
  const int64_t sequences =
      training.global_batch_size > 0
          ? training.global_batch_size
          : training.micro_batch_size * training.gradient_accumulation_steps * ranks;
  return training.max_steps > 0 ? training.max_steps
                                : training.max_tokens / sequences / settings.data.seq_length;
}

}  // namespace fp8train
