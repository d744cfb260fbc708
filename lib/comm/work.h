#pragma once
// The handle of a collective that has been started. Buffers belong to the operation until it is
// done.

#include <memory>
#include <utility>

namespace fp8train {

/// What a Communicator's own operations are behind a handle.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
};

/// Movable. Without an operation it is done.
class Work {
 public:
  Work() = default;
  explicit Work(std::unique_ptr<PendingWork> pending) : pending_(std::move(pending)) {}

  /// Whether wait() would return at once. Throws CommError when the operation failed.
  bool done() { return pending_ == nullptr || pending_->done(); }

  /// Returns when work that is submitted to the stream of the operation from now on sees the
  /// result; on the cpu that is when the result is there. Throws CommError when the operation
  /// failed or did not end in the communicator's time.
  void wait() {
    if (pending_ != nullptr) {
      pending_->wait();
      pending_.reset();
    }
  }

 private:
  std::unique_ptr<PendingWork> pending_;
};

}  // namespace fp8train
