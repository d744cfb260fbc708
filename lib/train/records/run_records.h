#pragma once
// The files that a run writes while it trains: the lock on its folder, metrics.jsonl,
// tensors.jsonl, train.log, samples, summary.json, and event files for TensorBoard.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "io/checkpoint/run_directory.h"
#include "io/checkpoint/run_lock.h"
#include "io/event_file.h"
#include "io/metrics.h"
#include "precision/scaling_state.h"
#include "train/records/run_statistics.h"
#include "train/watch/divergence.h"
#include "train/watch/stragglers.h"

namespace fp8train {

class MetricLine;

/// The numbers of one step, and of the interval since the last line, that are recorded.
struct StepMetrics {
  int64_t step = 0;       ///< done
  int64_t max_steps = 0;  ///< the last step of the run
  double loss = 0;
  double lr = 0;
  double gradient_norm = 0;
  int64_t tokens = 0;
  /// Passes over each source of a blend so far, by the source's path. Empty if there is no blend.
  std::vector<std::pair<std::string, double>> epochs;
  double tokens_per_second = 0;
  double seconds_per_step = 0;
  double tflops = 0;           ///< 10^12 FLOPs of the model (flops_per_token) per second and rank
  std::optional<double> mfu;   ///< share of the GPU's stated 16-bit rate, if that is known
  uint64_t memory_bytes = 0;   ///< the most that this rank has held
  uint64_t data_position = 0;  ///< samples that have been read
  std::optional<double> loss_scale;  ///< plans with loss scaling
  int64_t skipped_steps = 0;
  std::optional<Straggler> straggler;  ///< since the last such line, if there are several ranks
  std::optional<Traffic> sent;  ///< what this rank sends in a step, if there are several ranks
  const ScalingSummary* scaling = nullptr;         ///< summary of `slots`; FP8 plans only
  const std::vector<SlotReport>* slots = nullptr;  ///< casts by role; set with `scaling`
  bool each_tensor = false;                        ///< `slots` one by one, in tensors.jsonl
};

struct SaveResult;

/// Writes the records of a run into its folder: metrics, samples, TensorBoard files and progress.
class RunRecords {
 public:
  /// Takes the folder's lock. Throws ConfigError when another run holds it, DeviceError when the
  /// folder cannot be written. `leads` is false on all ranks but the first: they write nothing.
  explicit RunRecords(const std::filesystem::path& root, bool leads = true);

  const RunDirectory& directory() const { return directory_; }
  /// Returns the file that progress lines are also written to. Empty on ranks that do not lead.
  std::filesystem::path progress_log() const {
    return lock_ ? directory_.log() : std::filesystem::path();
  }
  /// Frees the folder for a run on any machine, before this process is ended from outside. Waits a
  /// second at most, for a disk that may not answer.
  void release_lock() const;
  std::string lock_warning() const { return lock_ ? lock_->warning() : std::string(); }

  /// Continues metrics.jsonl and tensors.jsonl after `step`; lines of later steps of an interrupted
  /// run are dropped. A run that begins anew gives the files of one before another name, with a
  /// warning.
  void begin_metrics(int64_t step);
  /// From now on an event file for TensorBoard is written too; it shows `config` and replaces what
  /// earlier ones show of steps after `step`.
  void begin_events(int64_t step, const std::string& config);
  void write_step(const StepMetrics& metrics);
  /// Those that lines of metrics are missing of after the run went back to step `to_step`, as lines
  /// of the first step that follows.
  void write_rollbacks(const std::vector<Rollback>& rollbacks, int64_t to_step);
  void write_validation(int64_t step, double loss, int64_t targets);
  /// `failed_in_a_row`: saves, this one included.
  void write_save(const SaveResult& result, int64_t failed_in_a_row);
  void write_sample(int64_t step, const std::string& text);
  /// summary.json, with the number of lines that were lost.
  void write_summary(JsonObject summary);

  /// Lines of metrics that could not be written: a warning says so when the first one is lost, and
  /// when they can be written again. They do not stop the run.
  int64_t lost_lines() const { return lost_lines_; }

 private:
  void append(const MetricLine& line);
  void append(const JsonObject& line, MetricsWriter& writer);
  void put_aside_metrics();
  void write_tensors(const StepMetrics& metrics);
  void show(int64_t step, const EventSummary& summary);

  std::shared_ptr<RunLock> lock_;  // the lock of the rank that leads; null on others
  RunDirectory directory_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<MetricsWriter> tensors_;  // null: nothing has been written
  std::unique_ptr<EventFile> events_;       // null: nothing is shown
  int64_t lost_lines_ = 0;
  bool losing_ = false;
};

}  // namespace fp8train
