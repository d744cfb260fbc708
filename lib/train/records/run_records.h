#pragma once
// The files that a run writes while it trains: the lock on its folder, metrics.jsonl,
// tensors.jsonl, samples, summary.json, and what its sinks write.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "comm/communicator.h"
#include "config/settings.h"
#include "device/gpu_monitor.h"
#include "engine/engine.h"
#include "engine/expert_loads.h"
#include "io/checkpoint/run_directory.h"
#include "io/metrics.h"
#include "precision/scaling_state.h"
#include "train/records/run_statistics.h"
#include "train/watch/divergence.h"

namespace fp8train {

/// The numbers of one step, and of the interval since the last line, that are recorded.
struct StepMetrics {
  int64_t step = 0;                    ///< done
  int64_t max_steps = 0;               ///< the last step of the run
  double loss = 0;                     ///< cross entropy
  std::optional<double> z_loss;        ///< added to it in training, where training.z_loss is not 0
  std::optional<ExpertLoads> experts;  ///< of this step; nothing without experts
  double lr = 0;
  double gradient_norm = 0;
  int64_t tokens = 0;
  /// Passes over each source of a blend so far, by the source's path. Empty if there is no blend.
  std::vector<std::pair<std::string, double>> epochs;
  double tokens_per_second = 0;
  double seconds_per_step = 0;
  double tflops = 0;          ///< 10^12 FLOPs of the model (flops_per_token) per second and rank
  std::optional<double> mfu;  ///< `tflops` over SpeedLimits::flops_per_second()
  std::optional<double> speed_of_light;  ///< SpeedLimits::step_seconds() over seconds_per_step
  uint64_t memory_bytes = 0;             ///< the most that this rank has held
  uint64_t data_position = 0;            ///< samples that have been read
  std::optional<double> loss_scale;      ///< plans with loss scaling
  int64_t skipped_steps = 0;
  std::optional<GpuState> gpu;         ///< of this rank, during the step
  std::optional<Straggler> straggler;  ///< since the last such line, if there are several ranks
  /// Share of the time since the last such line in which each pipeline stage has waited for others,
  /// and the share that its schedule plans if all passes take as long.
  std::vector<double> stage_idle, planned_stage_idle;
  std::optional<Traffic> sent;  ///< what this rank sends in a step, if there are several ranks
  const ScalingSummary* scaling = nullptr;         ///< summary of `slots`; FP8 plans only
  const std::vector<SlotReport>* slots = nullptr;  ///< casts by role; read if `scaling` is set
  bool each_tensor = false;                        ///< `slots` one by one, in tensors.jsonl
};

class MetricLine;
struct SaveResult;

/// An open destination of records in addition to metrics.jsonl. A new one is a class in a file of
/// its own here, and a line in kSinks (run_records.cpp). Its functions throw DeviceError when they
/// cannot write, which ends it and not the run.
class MetricSink : NotCopied {
 public:
  virtual ~MetricSink() = default;

  /// Writes a line of metrics. `metrics` has the casts of a training step; null: an evaluation.
  virtual void line(int64_t step, const MetricLine& line, const StepMetrics* metrics) = 0;
  /// Writes a text, such as that of a sample.
  virtual void text(int64_t step, const char* title, const std::string& text) = 0;
};

/// Opens event files for TensorBoard, which replace the steps after `step` of earlier files. Throws
/// DeviceError when they cannot be written.
std::unique_ptr<MetricSink> open_tensorboard(const RunDirectory& run, int64_t step);

/// Writes the records of a run into its folder: metrics, samples, the summary, and to its sinks.
/// Lines and samples that cannot be written do not stop the run: a warning says so. All functions
/// do nothing on ranks that do not lead.
class RunRecords {
 public:
  /// Takes the folder's lock and makes the folder. Throws ConfigError when another run holds the
  /// lock, and DeviceError when the folder cannot be written or one of its files is not a regular
  /// one. `leads` is false on all ranks but the first: they write nothing.
  explicit RunRecords(const std::filesystem::path& root, bool leads = true);

  const RunDirectory& directory() const { return directory_; }
  /// Frees the folder for a run on any machine, before this process is ended from outside. Waits a
  /// second at most, for a disk that may not answer.
  void release_lock() const;
  /// Returns the warning of the lock (RunLock::warning), or an empty text.
  std::string lock_warning() const { return lock_ ? lock_->warning() : std::string(); }

  /// Whether the lock's file was removed or replaced, so that another run may be in the folder.
  /// Once lost, it stays lost.
  bool has_lost_lock() const { return lock_ && lock_->is_lost(); }
  /// Throws DeviceError on all ranks where the first one has lost the lock. Collective.
  void require_lock(Communicator& comm) const;

  /// Continues metrics.jsonl and tensors.jsonl after `step`; lines of later steps of an interrupted
  /// run are dropped. A run that begins anew gives the files of one before another name, with a
  /// warning. `interval`: logging.interval, by which a gap before `step` is noticed and warned of.
  /// Throws DeviceError when a file cannot be opened or renamed.
  void begin_metrics(int64_t step, int64_t interval);
  /// Flushes metrics.jsonl, tensors.jsonl and train.log to disk. Called before a checkpoint is
  /// saved, so that a power failure leaves no gap before its step. Warns where that fails.
  void sync() const;
  /// Opens the sinks that the settings ask for; the functions below write to them as well. They
  /// show `config` and replace the steps after `step` of an earlier start. Throws DeviceError when
  /// one cannot be written.
  void open_sinks(const LoggingSettings& settings, int64_t step, const std::string& config);
  /// Writes a line of metrics and, with StepMetrics::each_tensor, one of tensors.jsonl.
  /// begin_metrics() comes first, as for the functions below.
  void write_step(const StepMetrics& metrics);
  /// Writes a line of metrics for each rollback that has none after the run went back to step
  /// `to_step`; it is a line of the first step that follows.
  void write_rollbacks(const std::vector<Rollback>& rollbacks, int64_t to_step);
  /// Writes a line of metrics. `loss` is in nats per target.
  void write_validation(int64_t step, const LossReport& loss, bool has_experts = false);
  /// Writes a line of metrics. `failed_in_a_row`: saves that failed one after the other, this one
  /// included.
  void write_save(const SaveResult& result, int64_t failed_in_a_row);
  /// Writes the text of a sample into a file of its own.
  void write_sample(int64_t step, const std::string& text);
  /// Writes summary.json, with the number of lines that were lost. Throws DeviceError.
  void write_summary(nlohmann::ordered_json summary);

  /// Returns the number of lines of metrics that could not be written. A warning says so when the
  /// first one is lost, and when they can be written again.
  int64_t lost_lines() const { return lost_lines_; }

 private:
  struct OpenSink {
    const char* reader;
    std::unique_ptr<MetricSink> sink;
  };

  void append(const MetricLine& line);
  void append(const nlohmann::ordered_json& line, MetricsWriter& writer);
  void put_aside_metrics();
  void write_tensors(const StepMetrics& metrics);
  void show(const std::function<void(MetricSink&)>& write);

  std::shared_ptr<RunLock> lock_;  // the lock of the rank that leads; null on others
  RunDirectory directory_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<MetricsWriter> tensors_;  // null: nothing has been written
  std::vector<OpenSink> sinks_;
  int64_t lost_lines_ = 0;
  bool losing_ = false;
};

}  // namespace fp8train
