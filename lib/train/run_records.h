#pragma once
// What a run writes down while it goes: the lock on its folder, metrics.jsonl, tensors.jsonl,
// train.log, samples, summary.json, and event files for TensorBoard.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "io/event_file.h"
#include "io/metrics.h"
#include "io/run_directory.h"
#include "io/run_lock.h"
#include "precision/scaling_state.h"
#include "train/divergence.h"
#include "train/run_statistics.h"
#include "train/stragglers.h"

namespace fp8train {

struct StepMetrics {
  int64_t step = 0;       ///< done
  int64_t max_steps = 0;  ///< of the run
  double loss = 0;
  double lr = 0;
  double gradient_norm = 0;
  int64_t tokens = 0;
  /// Passes over each source of a blend so far, by its path; empty: no blend.
  std::vector<std::pair<std::string, double>> epochs;
  double tokens_per_second = 0;
  double seconds_per_step = 0;
  double tflops = 0;           ///< 10^12 FLOPs of the model (flops_per_token) per second and rank
  std::optional<double> mfu;   ///< share of the GPU's stated 16-bit rate; where that is known
  uint64_t memory_bytes = 0;   ///< the most that this rank has held
  uint64_t data_position = 0;  ///< samples that have been read
  std::optional<double> loss_scale;  ///< plans with loss scaling
  int64_t skipped_steps = 0;
  std::optional<Straggler> straggler;  ///< since the last such line; where there are several ranks
  std::optional<Traffic> sent;  ///< by this rank to others in a step; where there are several
  const ScalingSummary* scaling = nullptr;         ///< FP8 plans: of `slots`
  const std::vector<SlotReport>* slots = nullptr;  ///< with `scaling`: casts by tensor role
  bool each_tensor = false;                        ///< `slots` one by one, in tensors.jsonl
};

/// A save that is over.
struct SaveMetrics {
  int64_t step = 0;
  bool saved = false;
  double stall_seconds = 0;  ///< in which the first rank did not train
  double write_seconds = 0;
  uint64_t bytes = 0;
  int64_t failed_in_a_row = 0;
};

/// All saves of this start of the run.
struct SaveTotals {
  int64_t saved = 0;
  int64_t failed = 0;
  double stall_seconds = 0;
  double write_seconds = 0;
};

/// What one start of a run did.
struct StartTotals {
  int64_t steps = 0;
  int64_t tokens = 0;
  double seconds = 0;  ///< evaluations and saves included
};

struct RunSummary {
  std::string plan;
  int64_t parameters = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double loss = 0;
  std::optional<double> val_loss;
  double best_val_loss = 0;
  int64_t best_val_step = 0;
  StartTotals last_start;
  double tokens_per_second = 0;
  size_t peak_memory_bytes = 0;
  int64_t skipped_steps = 0;
  SaveTotals saves;
  int64_t rollbacks = 0;
};

class RunRecords {
 public:
  /// Takes the folder's lock. Throws ConfigError when another run holds it, DeviceError when the
  /// folder cannot be written. `leads` is false on all ranks but the first: they write nothing.
  explicit RunRecords(const std::filesystem::path& root, bool leads = true);

  const RunDirectory& directory() const { return directory_; }
  /// Where progress is written down; empty on ranks that do not lead.
  std::filesystem::path progress_log() const {
    return lock_ ? directory_.log() : std::filesystem::path();
  }
  /// Before this process is ended from outside: the folder is free for a run on any machine. Waits
  /// a second at most, for a disk that may not answer.
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
  void write_save(const SaveMetrics& metrics);
  void write_sample(int64_t step, const std::string& text);
  void write_summary(const RunSummary& summary);

  /// Lines of metrics that could not be written: a warning says so when the first one is lost, and
  /// when they can be written again. They do not stop the run.
  int64_t lost_lines() const { return lost_lines_; }

 private:
  void append(const JsonObject& line) { append(line, *metrics_); }
  void append(const JsonObject& line, MetricsWriter& writer);
  void put_aside_metrics();
  void write_tensors(const StepMetrics& metrics);
  void show(int64_t step, const EventSummary& summary);

  std::shared_ptr<RunLock> lock_;  // of the rank that leads; null on others
  RunDirectory directory_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<MetricsWriter> tensors_;  // null: nothing has been written
  std::unique_ptr<EventFile> events_;       // null: nothing is shown
  int64_t lost_lines_ = 0;
  bool losing_ = false;
};

}  // namespace fp8train
