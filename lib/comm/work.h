#pragma once
// The handle of a collective that has been started. Buffers belong to the operation until it is
// done.

#include <memory>
#include <utility>

#include "base/trace.h"

namespace fp8train {

/// What a Communicator's own operations are behind a handle.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
  /// When it was over, of trace_clock(); asked after that. Where nobody noted it: now.
  virtual double ended() { return trace_clock(); }
};

/// Movable. Without an operation it is done.
class Work {
 public:
  Work() = default;
  explicit Work(std::unique_ptr<PendingWork> pending) : pending_(std::move(pending)) {}

  /// Ends the flight when it is seen that the operation is over.
  void show(const TraceFlight& flight) { flight_ = flight; }

  /// Whether wait() would return at once. Throws CommError when the operation failed.
  bool done() {
    const bool over = pending_ == nullptr || pending_->done();
    if (over) {
      end_flight();
    }
    return over;
  }

  /// Returns when work that is submitted to the stream of the operation from now on sees the
  /// result; on the cpu that is when the result is there. Throws CommError when the operation
  /// failed or did not end in the communicator's time.
  void wait() {
    if (pending_ != nullptr) {
      pending_->wait();
      end_flight();
      pending_.reset();
    }
  }

 private:
  void end_flight() {
    if (flight_.active() && pending_ != nullptr) {
      flight_.end(pending_->ended());
    }
  }

  std::unique_ptr<PendingWork> pending_;
  TraceFlight flight_;
};

}  // namespace fp8train
