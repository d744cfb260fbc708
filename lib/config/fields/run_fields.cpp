// Checkpoints, evaluation, samples, logging, ranks and everything else around a run.

#include <fmt/format.h>

#include <algorithm>

#include "base/nearest.h"
#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

using namespace fields;

constexpr double kMaxThreads = 1024;

std::string offered_interval(const Settings& settings) {
  const int64_t steps = planned_steps(settings);
  return steps > 0 ? std::to_string(std::clamp<int64_t>(steps / 10, 1, 1000)) : "auto";
}

/// A tenth of the run.
std::string offered_evaluations(const Settings& settings) {
  constexpr int64_t kWithoutLength = 100;
  const int64_t steps = planned_steps(settings);
  return std::to_string(steps > 0 ? std::max<int64_t>(steps / 10, 1) : kWithoutLength);
}

Field checkpoint_interval() {
  const auto member = in(&Settings::checkpoint, &CheckpointSettings::interval);
  return or_word(
      field("checkpoint.interval", member, at_least(0),
            "Steps between checkpoints; 0: only at the end and on a stop signal; auto: the "
            "interval that loses the least time, computed from the time that saves take and "
            "job.mtbf"),
      member, "auto", kAutomaticInterval);
}

/// Another word for cuda is gpu.
Field device_field() {
  Field made = choice("device", in(&Settings::device), kDeviceChoices,
                      "auto takes a GPU if there is one; gpu means cuda");
  made.read = [read = made.read](Settings& settings, const FieldValue& value) {
    if (simplified(value.node().text) == "gpu") {
      settings.device = DeviceChoice::cuda;
    } else {
      read(settings, value);
    }
  };
  return made;
}

void check_evaluations(const CheckContext& at) {
  const DataSettings& data = at.settings.data;
  if (at.settings.eval.interval > 0 && data.val.empty() && at.usable("data.val") &&
      data.val_fraction == 0 && at.usable("data.val_fraction")) {
    const char* const remedy = "set data.val or data.val_fraction, or eval.interval: 0";
    if (at.has("data.val_fraction")) {
      at.given.complain("data.val_fraction",
                        fmt::format("is 0, and there is no data.val, but eval.interval is {}; {}",
                                    at.settings.eval.interval, remedy));
    } else {
      at.complain(fmt::format("asks for evaluations, but there are no data for them; {}", remedy));
    }
  }
}

}  // namespace

std::vector<Field> checkpoint_fields() {
  const auto checkpoint = under(&Settings::checkpoint);
  return {
      checkpoint_interval().asked({.topic = Topic::checkpoints,
                                   .text = "Steps between checkpoints",
                                   .suggest = offered_interval}),
      field("checkpoint.async", checkpoint(&CheckpointSettings::async),
            "Training continues while a copy of its state is written; false: it waits. Only one "
            "checkpoint is written at a time: if the next is due earlier, training waits"),
      field("checkpoint.max_failed_saves", checkpoint(&CheckpointSettings::max_failed_saves),
            at_least(1),
            "Failed saves in a row, such as on a full disk, after which the run ends with exit "
            "code 4"),
      field("checkpoint.keep_last", checkpoint(&CheckpointSettings::keep_last), between(1, 1e6),
            "Number of newest checkpoints of checkpoint.interval that are not deleted; the "
            "newest of all is never deleted")
          .asked({.topic = Topic::checkpoints, .text = "Checkpoints to keep"}),
      field("checkpoint.keep_every", checkpoint(&CheckpointSettings::keep_every), at_least(0),
            "Also keep checkpoints whose step is a multiple of this; 0: none"),
      field("checkpoint.keep_best", checkpoint(&CheckpointSettings::keep_best), at_least(0),
            "Also keep this many with the lowest validation loss, which is that of the last "
            "evaluation at or before their step; of several with the same evaluation the first "
            "one counts"),
      path("checkpoint.resume", checkpoint(&CheckpointSettings::resume),
           "auto continues from the newest complete checkpoint, never starts afresh, a path "
           "continues from that one",
           "auto, never or a checkpoint directory")
          .asked({.topic = Topic::checkpoints, .text = "Resume"}),
      field("checkpoint.save_final", checkpoint(&CheckpointSettings::save_final),
            "Save a checkpoint after the last step"),
      choice("checkpoint.changed_data", checkpoint(&CheckpointSettings::changed_data), kOnChange,
             "What to do when a run resumes and its data files differ from those of the "
             "checkpoint; accept names them in a warning"),
      choice("checkpoint.changed_plan", checkpoint(&CheckpointSettings::changed_plan), kOnChange,
             "What to do when a run resumes from a checkpoint of another precision plan; accept "
             "rounds weights and moments to the formats of the new plan, whose scaling begins as "
             "at the start of a run"),
  };
}

std::vector<Field> eval_fields() {
  return {
      field("eval.interval", in(&Settings::eval, &EvalSettings::interval), at_least(0),
            "Steps between evaluations; 0: only at the end")
          .asked({.topic = Topic::optimization,
                  .text = "Steps between evaluations, 0 for the end only",
                  .when =
                      [](const Settings& settings) {
                        return !settings.data.val.empty() || settings.data.val_fraction > 0;
                      },
                  .suggest = offered_evaluations})
          .checked(check_evaluations),
      field(
          "eval.batches", in(&Settings::eval, &EvalSettings::batches), at_least(1),
          "Micro-batches of a periodic evaluation, of all ranks together; the final one covers the "
          "whole split"),
  };
}

std::vector<Field> sample_fields() {
  const auto sample = under(&Settings::sample);
  return {
      field("sample.interval", sample(&SampleSettings::interval), at_least(0),
            "Steps between samples of text; 0: none"),
      field("sample.prompts", sample(&SampleSettings::prompts), {.shows_empty = true},
            "One sample is drawn per prompt"),
      field("sample.max_new_tokens", sample(&SampleSettings::max_new_tokens), between(1, 1 << 20),
            "Length of a sample"),
      field("sample.temperature", sample(&SampleSettings::temperature), between(0, 1000),
            "Divides the logits; 0 always takes the likeliest token"),
      field("sample.top_k", sample(&SampleSettings::top_k), at_least(0),
            "Draw from the k likeliest tokens; 0: from all"),
      field("sample.top_p", sample(&SampleSettings::top_p), above_up_to(0, 1),
            "Draw from the likeliest tokens with this total probability"),
  };
}

std::vector<Field> logging_fields() {
  return {
      field("logging.interval", in(&Settings::logging, &LoggingSettings::interval), at_least(1),
            "Steps between progress lines, each with a line of metrics.jsonl"),
      field("logging.tensor_interval", in(&Settings::logging, &LoggingSettings::tensor_interval),
            at_least(0),
            "Steps between lines of tensors.jsonl, which has the scales and errors of each "
            "tensor that is cast. A line is written in the first logged step after them and in "
            "the last step; 0: none"),
      choice("logging.format", in(&Settings::logging, &LoggingSettings::format), kProgressFormats,
             "auto is pretty on a terminal and plain elsewhere"),
      field("logging.tensorboard", in(&Settings::logging, &LoggingSettings::tensorboard),
            "Write event files for TensorBoard too, into output_dir/tensorboard; Weights & Biases: "
            "scripts/export/to_wandb.py"),
  };
}

std::vector<Field> comm_fields() {
  return {
      choice("comm.backend", in(&Settings::comm, &CommSettings::backend), kCommBackends,
             "Library for messages between the ranks that mpirun or srun has started. auto: mpi "
             "for ranks on CPUs, nccl for ranks on GPUs if it is found; mpi: on GPUs through host "
             "memory; self: one rank, whatever the launcher says"),
      choice("comm.bootstrap", in(&Settings::comm, &CommSettings::bootstrap), kCommBootstraps,
             "How ranks find each other. file: without MPI, for ranks on GPUs that srun has "
             "started; auto: file with backend nccl if srun offers no MPI, else mpi"),
      path("comm.bootstrap_file", in(&Settings::comm, &CommSettings::bootstrap_file),
           "With bootstrap file: its path, which all nodes must see; job, step and restart are "
           "appended. Empty: rendezvous, in output_dir",
           "a path", read_output_path),
      field("comm.timeout", in(&Settings::comm, &CommSettings::timeout_seconds), seconds("10m"),
            "Longest time for a message between ranks, after which the run ends"),
  };
}

std::vector<Field> top_level_fields() {
  return {
      device_field().asked({.topic = Topic::hardware, .text = "Device"}),
      field("cuda_graphs", in(&Settings::step, &StepSettings::cuda_graphs),
            "On a GPU, record the work of a step once and replay it"),
      field("gemm_tuning", in(&Settings::gemm_tuning),
            "On a GPU, time the algorithms for each product in the first step and store the choice "
            "in FP8TRAIN_CACHE_DIR (~/.cache/fp8train); a run repeats bitwise with the same file"),
      field("threads", in(&Settings::threads), between(0, kMaxThreads),
            "CPU threads of a rank; 0: OMP_NUM_THREADS, else SLURM_CPUS_PER_TASK, else its part "
            "of the "
            "cores"),
      path("output_dir", in(&Settings::output_dir), "Folder for the run's files", "a folder",
           read_output_path)
          .asked({.topic = Topic::checkpoints, .text = "Folder for the run's files"}),
  };
}

std::vector<Field> watchdog_fields() {
  const auto limit = [](const char* name, double WatchdogSettings::*member, const char* doc) {
    return field(std::string("watchdog.") + name, in(&Settings::watchdog, member),
                 {.range = between(0, kMaxSeconds),
                  .accepts = "a duration such as 30m, at most 3650d, or 0: any time",
                  .is_duration = true},
                 doc);
  };
  return {
      limit("start_up", &WatchdogSettings::start_up,
            "Until the first step: ranks meet, data are opened, a checkpoint is read; or the run "
            "goes back to a checkpoint"),
      limit("data", &WatchdogSettings::data, "A micro-batch is read"),
      limit("step", &WatchdogSettings::step,
            "A micro-batch is computed, or the update. Waiting for other ranks has comm.timeout"),
      limit("evaluation", &WatchdogSettings::evaluation,
            "A batch of an evaluation, or a token of a sample"),
      limit("save", &WatchdogSettings::save, "A checkpoint is written, by any rank"),
      limit("end", &WatchdogSettings::end, "From the end of the training to that of the process"),
  };
}

}  // namespace fp8train
