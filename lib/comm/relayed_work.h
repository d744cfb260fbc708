#pragma once
// A collective that moves memory of one kind by way of memory of another.

#include <functional>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "comm/communicator.h"

namespace fp8train {

/// The data of an operation: where the caller has it, and where it lies on its way.
struct RelayedPart {
  void* data;
  void* relay;
  size_t bytes;
};

/// The same operation with its data in other memory: what it sends at `send`, what it receives at
/// `recv`, messages one after another. A broadcast sends what lies where it receives.
class RelayedOperation {
 public:
  RelayedOperation(const Communicator::Operation& operation, int ranks, void* send, void* recv);

  const Communicator::Operation& operation() const { return operation_; }
  const std::vector<RelayedPart>& sent() const { return sent_; }
  const std::vector<RelayedPart>& received() const { return received_; }

 private:
  Communicator::Operation operation_;
  std::vector<Message> messages_;
  std::vector<RelayedPart> sent_, received_;
};

class RelayedWork final : public PendingWork, NotCopied {
 public:
  /// `bring`, called by wait(), copies the received bytes to where they belong; `release`, called
  /// by the destructor, gives back the memory between.
  RelayedWork(Work work, std::function<void()> bring, std::function<void()> release)
      : work_(std::move(work)), bring_(std::move(bring)), release_(std::move(release)) {}
  ~RelayedWork() override {
    work_ = Work();  // before its memory is another's
    release_();
  }

  bool done() override { return work_.done(); }
  void wait() override {
    work_.wait();
    bring_();
  }

 private:
  Work work_;
  std::function<void()> bring_, release_;
};

}  // namespace fp8train
