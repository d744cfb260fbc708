#pragma once
// A communicator of ranks on threads that works as NCCL does.

#include <memory>
#include <utility>

#include "comm/communicator.h"

namespace fp8train::test {

/// Each operation begins when the one before has ended, as in the one stream of NCCL.
class InOrder final : public Communicator {
 public:
  explicit InOrder(Communicator& inner) : Communicator(&inner), inner_(&inner) {}
  InOrder(std::unique_ptr<Communicator> inner, std::shared_ptr<Traffic> traffic)
      : Communicator(inner.get(), std::move(traffic)),
        owned_(std::move(inner)),
        inner_(owned_.get()) {}
  bool in_stream_order() const override { return true; }
  void fail(int exit_code) override { inner_->fail(exit_code); }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    return std::make_unique<InOrder>(inner_->group(group.color_of_rank), counters());
  }
  Work start(const Operation& operation) override {
    inner_->set_timeout(timeout());
    inner_->run(operation).wait();
    return {};
  }
  const char* kind() const override { return "in order"; }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator* inner_;
};

}  // namespace fp8train::test
