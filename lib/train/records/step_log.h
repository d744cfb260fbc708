#pragma once
// A run's reports about its steps, once per logging.interval: an event, a line of the
// metrics, and warnings about FP8 scales.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "comm/communicator.h"
#include "device/gpu_monitor.h"
#include "engine/engine.h"
#include "train/checkpoint/training_state.h"
#include "train/records/run_records.h"
#include "train/records/run_statistics.h"
#include "train/records/speed_limits.h"
#include "train/run_listener.h"
#include "train/session.h"

namespace fp8train {

/// Measures the time of steps and writes their records.
class StepLog {
 public:
  /// All arguments outlive the object.
  StepLog(const Session& session, Device& device, const Topology& ranks, RunRecords& records,
          RunListener& listener, bool leads);

  /// Starts the measurement of the steps that follow `step`.
  void begin_at(int64_t step);
  /// Predicts the time of the engine's steps, on the rank that leads. Called before steps are
  /// timed, while the other ranks wait.
  void predict(const Engine& engine);
  /// Starts the time anew, and drops the seconds that were to be left out.
  void restart_time();
  /// Leaves out seconds that are not training: those of evaluations, samples and saves.
  void leave_out(double seconds) { seconds_left_out_ += seconds; }

  /// Reads the state of the GPU on the rank that leads, while it still computes a step: called
  /// before write(), and before the host waits for the step.
  void look_at_gpu() { gpu_ = monitor_ ? monitor_->current() : std::nullopt; }
  /// Reports the steps since the last call. Called after a step of which the engine collected
  /// statistics. Collective. Sets the loss of `state`. `sent`: by this rank in that step.
  void write(Engine& engine, TrainingState& state, const Traffic& sent);
  /// Logs the warnings that are left at the end of the run.
  void warn_at_end();

  /// Returns the speed of all ranks in the last interval, without the seconds left out.
  double tokens_per_second() const { return tokens_per_second_; }

 private:
  std::vector<std::pair<std::string, double>> epochs_of_sources(uint64_t samples) const;
  bool tensors_are_due(int64_t step) const;

  const Session* session_;
  Device* device_;
  RunRecords* records_;
  RunListener* listener_;
  std::optional<Samples> blend_;  ///< set if sources have weights
  SpeedLimits limits_;
  std::optional<GpuMonitor> monitor_;  ///< set on a GPU, on the rank that leads
  std::optional<GpuState> gpu_;
  ScalingWarnings scaling_warnings_;
  Stopwatch since_log_;
  double seconds_left_out_ = 0;
  int64_t logged_step_ = 0;
  double tokens_per_second_ = 0;
};

}  // namespace fp8train
