#pragma once
// The handle of a collective that has been started. Buffers belong to the operation until it is
// done.

#include <cstdint>
#include <memory>
#include <utility>

#include "base/flight_recorder.h"
#include "base/trace.h"

namespace fp8train {

/// The operation behind a handle, which each kind of communicator implements.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  /// Whether the operation is over. Throws CommError when it failed.
  virtual bool done() = 0;
  /// Waits as Work::wait() does.
  virtual void wait() = 0;
  /// Returns the time of its end by trace_clock(), or the present time if nobody noted it. Called
  /// after it has ended.
  virtual double ended() { return trace_clock(); }
};

/// An operation under way. Movable. An object without an operation is done.
class Work {
 public:
  Work() = default;
  explicit Work(std::unique_ptr<PendingWork> pending) : pending_(std::move(pending)) {}

  /// Ends the flight when it is seen that the operation is over.
  void show(const TraceFlight& flight) { flight_ = flight; }

  /// The calling thread's recorder has this operation as `number`. A wait for it that takes longer
  /// than `limit` seconds, 0: any time, is for the watchdog.
  void record(FlightRecorder& recorder, uint64_t number, double limit) {
    recorder_ = &recorder;
    number_ = number;
    limit_ = limit;
  }
  bool is_pending() const { return pending_ != nullptr; }

  /// Whether wait() would return at once. Throws CommError when the operation failed.
  bool done() {
    const bool over = pending_ == nullptr || pending_->done();
    if (over) {
      end_flight();
      end_record();
    }
    return over;
  }

  /// Returns when work that is submitted to the stream of the operation from now on sees the
  /// result; on the cpu that is when the result is there. Throws CommError when the operation
  /// failed or did not end in the communicator's time.
  void wait() {
    if (pending_ != nullptr) {
      wait_in_record();
      end_flight();
      end_record();
      pending_.reset();
    }
  }

 private:
  void wait_in_record() {
    if (recorder_ == nullptr) {
      return pending_->wait();
    }
    recorder_->begin_wait(number_, limit_);
    try {
      pending_->wait();
    } catch (...) {
      recorder_->keep_failed_state();
      recorder_->end_wait();
      throw;
    }
    recorder_->end_wait();
  }
  void end_record() {
    if (recorder_ != nullptr) {
      recorder_->end_operation(number_);
      recorder_ = nullptr;
    }
  }
  void end_flight() {
    if (flight_.active() && pending_ != nullptr) {
      flight_.end(pending_->ended());
    }
  }

  std::unique_ptr<PendingWork> pending_;
  TraceFlight flight_;
  FlightRecorder* recorder_ = nullptr;
  uint64_t number_ = 0;  // number in the recorder
  double limit_ = 0;
};

}  // namespace fp8train
