#pragma once
// The typed settings of a run: what YAML and the command line become. Lower modules take these
// structs (or parts of them), never YAML.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/comm_settings.h"
#include "data/data_settings.h"
#include "device/device_choice.h"
#include "engine/step_settings.h"
#include "model/model_config.h"
#include "optim/settings.h"
#include "parallel/settings.h"
#include "precision/plan.h"

namespace fp8train {

/// The settings under `model`, but for StepSettings.
struct ModelSettings {
  std::string preset;  ///< a named shape
  std::string from;    ///< a Hugging Face folder to start from
  ModelConfig config;  ///< resolved shape (preset or fields); vocab_size 0 until the tokenizer is
                       ///< known. Unused with `from`
  std::string lora_from;              ///< folder of adapters to begin with; empty: new ones
  std::string lora_base = "as_file";  ///< LoraSettings::base, or as the folder of `from` has it
  int64_t resize_vocabulary =
      0;  ///< tokens that the model of `from` shall have; 0: as many as it has

  bool operator==(const ModelSettings&) const = default;
};

/// A step whose gradient norm is not finite.
enum class OnNonFinite : uint8_t { skip, stop };
inline constexpr std::pair<OnNonFinite, std::string_view> kOnNonFinite[] = {
    {OnNonFinite::skip, "skip"}, {OnNonFinite::stop, "stop"}};

/// A run that diverges (train/watch/divergence.h).
enum class OnDivergence : uint8_t { stop, rollback };
inline constexpr std::pair<OnDivergence, std::string_view> kOnDivergence[] = {
    {OnDivergence::stop, "stop"}, {OnDivergence::rollback, "rollback"}};

/// The settings under `training`, but for StepSettings.
struct TrainingSettings {
  int64_t max_steps = 0;  ///< exactly one of max_steps, max_tokens and max_epochs is set
  int64_t max_tokens = 0;
  double max_epochs = 0;  ///< passes over the training samples
  /// Sequences per optimizer step over all ranks; 0: not asked for. When set, it decides:
  /// StepSettings::gradient_accumulation_steps then holds the value for one rank, and open_session
  /// divides it among more.
  int64_t global_batch_size = 0;
  double max_time_seconds = 0;  ///< 0: no limit; otherwise save and stop with exit code 75
  OnNonFinite non_finite = OnNonFinite::skip;
  int64_t max_consecutive_skips = 10;
  OnDivergence on_divergence = OnDivergence::stop;
  int64_t max_rollbacks = 3;
  double spike_threshold = 0;  ///< standard deviations; 0: spikes are not looked for
  int64_t spike_window = 128;  ///< steps
  int64_t spike_steps = 3;

  bool operator==(const TrainingSettings&) const = default;
};

/// CheckpointSettings::interval: found from what saves cost.
constexpr int64_t kAutomaticInterval = -1;

/// Where a run continues with something else than its checkpoint was saved with.
enum class OnChange : uint8_t { refuse, accept };
inline constexpr std::pair<OnChange, std::string_view> kOnChange[] = {{OnChange::refuse, "refuse"},
                                                                      {OnChange::accept, "accept"}};

/// Words of checkpoint.resume; anything else is the folder of a checkpoint.
enum class ResumeFrom : uint8_t {
  newest,   ///< checkpoint of the run's folder, where it has one
  nothing,  ///< and no checkpoint is there
  folder,
};
inline constexpr std::pair<ResumeFrom, std::string_view> kResumeWords[] = {
    {ResumeFrom::newest, "auto"}, {ResumeFrom::nothing, "never"}};

/// The settings under `checkpoint`.
struct CheckpointSettings {
  int64_t interval = 0;  ///< steps; 0: only at the end and on a stop signal; kAutomaticInterval
  bool async = true;     ///< written while training continues
  int64_t max_failed_saves = 3;  ///< in a row
  int64_t keep_last = 2;
  int64_t keep_every = 0;       ///< steps; 0: none
  int64_t keep_best = 0;        ///< by validation loss
  std::string resume = "auto";  ///< a word, or a folder: resume_from()
  bool save_final = true;
  OnChange changed_data = OnChange::refuse;  ///< other data than the checkpoint's
  OnChange changed_plan = OnChange::refuse;  ///< another plan than the checkpoint's

  ResumeFrom resume_from() const {
    for (const auto& [from, word] : kResumeWords) {
      if (resume == word) {
        return from;
      }
    }
    return ResumeFrom::folder;
  }

  bool operator==(const CheckpointSettings&) const = default;
};

/// The settings under `eval`.
struct EvalSettings {
  int64_t interval = 0;  ///< steps; 0: only at the end
  int64_t batches = 20;  ///< of a periodic evaluation, over all ranks; the final one covers the
                         ///< whole split

  bool operator==(const EvalSettings&) const = default;
};

/// The settings under `sample`.
struct SampleSettings {
  int64_t interval = 0;
  std::vector<std::string> prompts = {"\n"};
  int64_t max_new_tokens = 100;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1.0;

  bool operator==(const SampleSettings&) const = default;
};

/// The form of progress lines. `automatic` is pretty on a terminal and plain elsewhere.
enum class ProgressFormat : uint8_t { automatic, pretty, plain };
inline constexpr std::pair<ProgressFormat, std::string_view> kProgressFormats[] = {
    {ProgressFormat::automatic, "auto"},
    {ProgressFormat::pretty, "pretty"},
    {ProgressFormat::plain, "plain"}};

/// The settings under `logging`.
struct LoggingSettings {
  int64_t interval = 10;
  int64_t tensor_interval = 100;
  ProgressFormat format = ProgressFormat::automatic;
  bool tensorboard = false;  ///< event files too, in output_dir/tensorboard

  bool operator==(const LoggingSettings&) const = default;
};

/// Seconds that a rank may spend in a section without getting on; 0: any time.
struct WatchdogSettings {
  double start_up = 3600;    ///< until the first step: ranks meet, data and checkpoint are read
  double data = 1800;        ///< a batch is read
  double step = 3600;        ///< a micro-batch or the update; waiting for others is comm.timeout
  double evaluation = 3600;  ///< a batch of an evaluation, a token of a sample
  double save = 7200;        ///< a checkpoint is written
  double end = 1800;         ///< from the last step's records to the end of the process

  bool operator==(const WatchdogSettings&) const = default;
};

/// The settings under `parallelism`.
struct ParallelismSettings : StrategySettings {
  int64_t check_replicas = 1000;  ///< steps between comparisons of the ranks' weights; 0: none

  /// `bucket_bytes` is 0, which stands for default_bucket_bytes().
  ParallelismSettings() { bucket_bytes = 0; }

  bool operator==(const ParallelismSettings&) const = default;
};

/// The machine that the run is planned for: the wizard asks, estimates memory and writes the job
/// script. A run itself takes what it is started with.
struct JobSettings {
  int64_t nodes = 1;
  int64_t ranks_per_node = 1;
  std::string gpu = "auto";  ///< auto: the device of this machine; else a name of gpu_kinds()
  double memory_gib = 0;  ///< memory of a node, for ranks on CPUs; 0: as much as this machine has
  bool slurm = true;      ///< write a job script
  std::string partition, account;         ///< names in Slurm; empty: its default
  std::vector<std::string> sbatch_extra;  ///< further options of sbatch, such as "--qos=high"
  std::vector<std::string> modules;       ///< environment modules that the script loads
  std::string container;                  ///< file that Apptainer runs ranks in; empty: none
  int64_t cpus_per_rank = 8;
  double time_limit_seconds = 24 * 3600;
  bool requeue = false;
  double mtbf_seconds = 0;  ///< between failures of the job; 0: train/checkpoint/run_checkpoints.h

  /// Whether `gpu` names one, which need not be the device of this machine.
  bool names_gpu() const { return gpu != "auto"; }

  bool operator==(const JobSettings&) const = default;
};

/// Facts about the files that settings come from. Not a setting: comparisons of runs ignore it.
struct Notes {
  /// Lines about keys in another program's spelling or without a meaning here, to be reported.
  std::vector<std::string> lines;
  int64_t processes = 0;  ///< number in another program's file; 0: it has none
  /// scheduler.warmup_steps is continued_warmup() of the run's steps, which may not be known yet.
  bool default_warmup = false;
  /// The text with which messages about a given key begin: "run.yaml:7:3: ".
  std::map<std::string, std::string> locations;

  bool operator==(const Notes&) const { return true; }
};

/// All settings of a run.
struct Settings {
  ModelSettings model;
  DataSettings data;
  StepSettings step;
  TrainingSettings training;
  OptimizerSettings optimizer;
  ScheduleSettings scheduler;
  PlanRequest precision;
  CheckpointSettings checkpoint;
  EvalSettings eval;
  SampleSettings sample;
  LoggingSettings logging;
  CommSettings comm;
  WatchdogSettings watchdog;
  ParallelismSettings parallelism;
  JobSettings job;
  DeviceChoice device = DeviceChoice::automatic;
  bool gemm_tuning = false;  ///< time the GPU's algorithms for each product
  int64_t threads = 0;       ///< 0: all cores (or SLURM_CPUS_PER_TASK, OMP_NUM_THREADS)
  std::string output_dir = "runs/default";
  Notes notes;

  bool operator==(const Settings&) const = default;
};

}  // namespace fp8train
