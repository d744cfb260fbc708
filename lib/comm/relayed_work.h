#pragma once
// A collective that moves memory of one kind by way of memory of another.

#include <functional>
#include <utility>

#include "comm/work.h"

namespace fp8train {

class RelayedWork final : public PendingWork {
 public:
  /// `bring`, called by wait(), copies the received bytes to where they belong; `release`, called
  /// by the destructor, gives back the memory between.
  RelayedWork(Work work, std::function<void()> bring, std::function<void()> release)
      : work_(std::move(work)), bring_(std::move(bring)), release_(std::move(release)) {}
  ~RelayedWork() override {
    work_ = Work();  // before its memory is another's
    release_();
  }
  RelayedWork(const RelayedWork&) = delete;
  RelayedWork& operator=(const RelayedWork&) = delete;

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
