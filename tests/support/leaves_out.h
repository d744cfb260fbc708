#pragma once
// Ranks that do not exchange all that they should.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace fp8train::test {

/// Ranks of which one collective is left out: each then has only what is its own.
class LeavesOut final : public Communicator {
 public:
  /// `left_out`: the number of the collective, from the first step on; -1: none.
  LeavesOut(Communicator& inner, int64_t left_out)
      : Communicator(&inner), inner_(&inner), left_out_(left_out) {}

  void begin() { begun_ = true; }
  int64_t calls() const { return calls_; }
  const std::string& left_out() const { return left_out_words_; }
  void fail(int exit_code) override { inner_->fail(exit_code); }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    return inner_->group(group.color_of_rank);
  }
  const char* kind() const override { return "leaves out"; }

  Work start(const Operation& operation) override {
    if (!begun_ || calls_++ != left_out_) {
      return inner_->run(operation);
    }
    left_out_words_ =
        std::string(operation.name()) + " of " + std::to_string(operation.bytes) + " bytes";
    const bool gathers = operation.collective == Collective::all_gather;
    std::vector<char> send(operation.send_bytes(size()));
    std::memcpy(send.data(), operation.send, send.size());
    std::vector<char> unused(operation.recv_bytes(size()));
    Operation aside = operation;
    aside.send = send.data();
    aside.recv = unused.data();
    inner_->run(aside).wait();
    for (int r = 0; r < size(); ++r) {
      char* const part =
          static_cast<char*>(operation.recv) + static_cast<size_t>(r) * operation.bytes;
      if (gathers) {
        std::memcpy(part, send.data(), operation.bytes);
      } else {
        std::memset(part, 0, operation.bytes);
      }
    }
    if (!gathers) {
      const size_t own = static_cast<size_t>(rank()) * operation.bytes;
      std::memcpy(static_cast<char*>(operation.recv) + own, send.data() + own, operation.bytes);
    }
    return {};
  }

 private:
  Communicator* inner_;
  int64_t left_out_;
  std::string left_out_words_;
  int64_t calls_ = 0;
  bool begun_ = false;
};

}  // namespace fp8train::test
