// Data, training, optimizer, schedule and everything around a run.

#include "config/field_builders.h"
#include "config/field_table.h"

namespace fp8train {
namespace {

using namespace fields;

template <class Member>
auto data(Member member) {
  return in(&Settings::data, member);
}

template <class Member>
auto training(Member member) {
  return in(&Settings::training, member);
}

template <class Member>
auto optimizer(Member member) {
  return in(&Settings::optimizer, member);
}

Field sources(std::string key, std::vector<DataSource> DataSettings::*member, std::string doc) {
  return make(std::move(key), "a list of {path, format, weight}", std::move(doc), data(member),
              read_sources, [](const std::vector<DataSource>& values) {
                return values.empty() ? "" : sources_text(values);
              });
}

Field betas() {
  const Range range = from_up_to(0, 1);
  return make(
      "optimizer.betas", "a list of 2 numbers" + range.text(),
      "Decay of AdamW's first and second moment", optimizer(&OptimizerSettings::betas),
      [range](const FieldValue& value, const std::string& what) {
        const auto numbers = read_numbers(value, 2, range, what);
        return numbers ? std::optional(std::array<double, 2>{(*numbers)[0], (*numbers)[1]})
                       : std::nullopt;
      },
      [](const std::array<double, 2>& value) {
        return fmt::format("[{}, {}]", number_text(value[0]), number_text(value[1]));
      });
}

std::vector<Field> optimizer_fields() {
  return {
      choice("optimizer.name", optimizer(&OptimizerSettings::name), {"adamw", "sgd"},
             "Update rule"),
      number("optimizer.lr", optimizer(&OptimizerSettings::lr), above(0), "Peak learning rate"),
      betas(),
      number("optimizer.eps", optimizer(&OptimizerSettings::eps), above(0),
             "Added to the root of AdamW's second moment"),
      number("optimizer.weight_decay", optimizer(&OptimizerSettings::weight_decay), at_least(0),
             "Decoupled weight decay, never on norms and biases"),
      number("optimizer.momentum", optimizer(&OptimizerSettings::momentum), from_up_to(0, 1),
             "Momentum of sgd"),
      number("optimizer.grad_clip", optimizer(&OptimizerSettings::grad_clip), at_least(0),
             "Largest global gradient norm; 0 turns clipping off"),
      choice("scheduler.type", in(&Settings::scheduler, &ScheduleSettings::type),
             {"cosine", "linear", "wsd", "constant"},
             "Course of the learning rate after warm-up; wsd: warm-up, stable, decay"),
      integer("scheduler.warmup_steps", in(&Settings::scheduler, &ScheduleSettings::warmup_steps),
              at_least(0), "Steps in which the learning rate rises linearly from 0"),
      number("scheduler.min_lr", in(&Settings::scheduler, &ScheduleSettings::min_lr), at_least(0),
             "Learning rate at the end of the decay"),
      integer("scheduler.decay_steps", in(&Settings::scheduler, &ScheduleSettings::decay_steps),
              at_least(0),
              "wsd: length of the final decay; cosine, linear: 0 decays until the last step"),
  };
}

}  // namespace

std::vector<Field> data_fields() {
  return {
      sources("data.train", &DataSettings::train,
              "Training sources, one after the other: {path, format: auto|text|jsonl|llmc|raw_u16, "
              "weight}; relative paths start at the working directory"),
      sources("data.val", &DataSettings::val,
              "Validation sources; not set: val_fraction of the training sources"),
      number("data.val_fraction", data(&DataSettings::val_fraction), from_up_to(0, 1),
             "Part of the training sources that is held back for validation"),
      text("data.tokenizer", data(&DataSettings::tokenizer),
           "byte, char, the path of a tokenizer file, or none for token files made elsewhere"),
      integer("data.seq_length", data(&DataSettings::seq_length), at_least(1),
              "Tokens of one sequence; a preset brings its own default"),
      flag("data.shuffle", data(&DataSettings::shuffle),
           "Windows in random order; false: in the order of the files"),
      text("data.text_key", data(&DataSettings::text_key), "JSONL: the key that holds the text"),
  };
}

std::vector<Field> training_fields() {
  std::vector<Field> result = {
      optional_count("training.max_steps", training(&TrainingSettings::max_steps),
                     "Optimizer steps of the whole run; either this or max_tokens"),
      optional_count("training.max_tokens", training(&TrainingSettings::max_tokens),
                     "Tokens of the whole run, such as 100M; either this or max_steps"),
      integer("training.micro_batch_size", training(&TrainingSettings::micro_batch_size),
              at_least(1), "Sequences per forward pass and rank"),
      integer("training.gradient_accumulation_steps",
              training(&TrainingSettings::gradient_accumulation_steps), at_least(1),
              "Forward passes per optimizer step")
          .when([](const Settings& s) { return s.training.global_batch_size == 0; }),
      optional_count("training.global_batch_size", training(&TrainingSettings::global_batch_size),
                     "Sequences per optimizer step over all ranks; instead of "
                     "gradient_accumulation_steps"),
      make("training.seed", "a whole number >= 0", "Seed of every random draw",
           training(&TrainingSettings::seed), read_unsigned,
           [](uint64_t value) { return std::to_string(value); }),
      number("training.z_loss", training(&TrainingSettings::z_loss), at_least(0),
             "Weight of the squared log of the softmax's normalizer in the loss"),
      integer("training.head_chunk_rows", training(&TrainingSettings::head_chunk_rows), at_least(0),
              "Rows of logits alive at a time; 0: chosen from the vocabulary"),
      make("training.max_time", "a duration such as 3h50m",
           "Save and stop with exit code 75 after this time",
           training(&TrainingSettings::max_time_seconds), read_duration,
           [](double seconds) { return seconds == 0 ? "" : duration_text(seconds); }),
      choice("training.non_finite", training(&TrainingSettings::non_finite), {"skip", "stop"},
             "What to do with a step whose gradient norm is not finite"),
      integer("training.max_consecutive_skips", training(&TrainingSettings::max_consecutive_skips),
              at_least(1), "Skipped steps in a row after which the run stops as diverged"),
  };
  for (Field& field : optimizer_fields()) {
    result.push_back(std::move(field));
  }
  return result;
}

std::vector<Field> run_fields() {
  const auto checkpoint = [](auto member) { return in(&Settings::checkpoint, member); };
  const auto sample = [](auto member) { return in(&Settings::sample, member); };
  return {
      integer("checkpoint.interval", checkpoint(&CheckpointSettings::interval), at_least(0),
              "Steps between checkpoints; 0: only at the end and on a stop signal"),
      integer("checkpoint.keep_last", checkpoint(&CheckpointSettings::keep_last), at_least(1),
              "Checkpoints that are kept"),
      text("checkpoint.resume", checkpoint(&CheckpointSettings::resume),
           "auto continues from the newest complete checkpoint, never starts afresh, a path "
           "continues from that one",
           "auto, never or a checkpoint directory"),
      flag("checkpoint.save_final", checkpoint(&CheckpointSettings::save_final),
           "Save a checkpoint after the last step"),
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
      integer("sample.max_new_tokens", sample(&SampleSettings::max_new_tokens), at_least(1),
              "Length of a sample"),
      number("sample.temperature", sample(&SampleSettings::temperature), at_least(0),
             "Divides the logits; 0 always takes the likeliest token"),
      integer("sample.top_k", sample(&SampleSettings::top_k), at_least(0),
              "Draw from the k likeliest tokens; 0: from all"),
      number("sample.top_p", sample(&SampleSettings::top_p), {0, 1, true, false},
             "Draw from the likeliest tokens with this total probability"),
      integer("logging.interval", in(&Settings::logging, &LoggingSettings::interval), at_least(1),
              "Steps between progress lines"),
      choice("logging.format", in(&Settings::logging, &LoggingSettings::format),
             {"auto", "pretty", "plain"}, "auto is pretty on a terminal and plain elsewhere"),
      choice("comm.backend", in(&Settings::comm, &CommunicationSettings::backend),
             {"auto", "self", "mpi", "nccl"},
             "What moves bytes between the ranks that mpirun or srun has started. auto: mpi for "
             "ranks on CPUs, nccl for ranks on GPUs where there is one; mpi: on GPUs through host "
             "memory; self: one rank, whatever the launcher says"),
      choice("comm.bootstrap", in(&Settings::comm, &CommunicationSettings::bootstrap),
             {"auto", "mpi", "file"},
             "How ranks find each other. file: ranks on GPUs that srun has started, without MPI; "
             "auto is that with backend nccl where srun offers none"),
      text("comm.bootstrap_file", in(&Settings::comm, &CommunicationSettings::bootstrap_file),
           "With bootstrap file: where it is, seen by all nodes; job, step and restart are added. "
           "Empty: meeting, in output_dir",
           "a path"),
      make("comm.timeout", "a duration such as 10m",
           "A message between ranks that takes longer ends the run",
           in(&Settings::comm, &CommunicationSettings::timeout_seconds), read_duration,
           [](double seconds) { return duration_text(seconds); }),
      integer("parallelism.bucket_mb", in(&Settings::parallelism, &ParallelismSettings::bucket_mb),
              between(1, 65536), "MiB of gradients that ranks exchange at a time"),
      choice("device", in(&Settings::device), {"auto", "cpu", "cuda"},
             "auto takes a GPU when there is one"),
      flag("cuda_graphs", in(&Settings::cuda_graphs),
           "On a GPU, record the work of a step once and replay it"),
      flag("gemm_tuning", in(&Settings::gemm_tuning),
           "On a GPU, time the algorithms for each product in the first step and keep the choice "
           "in FP8TRAIN_CACHE_DIR (~/.cache/fp8train); a run repeats bitwise with the same file"),
      integer("threads", in(&Settings::threads), between(0, 65536),
              "CPU threads of a rank; 0: OMP_NUM_THREADS, else SLURM_CPUS_PER_TASK, else its part "
              "of the "
              "cores"),
      text("output_dir", in(&Settings::output_dir), "Where the run's files go", "a folder"),
  };
}

}  // namespace fp8train
