#pragma once
// A collective that moves memory of one kind by way of memory of another.

#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "comm/backends/host_copy.h"
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
  RelayedOperation(const Communicator::Operation& operation, int ranks, void* send, void* recv)
      : operation_(operation), messages_(operation.messages.begin(), operation.messages.end()) {
    if (operation.collective != Collective::messages) {
      const bool in_place = operation.collective == Collective::broadcast;
      operation_.send = in_place ? recv : send;
      operation_.recv = recv;
      sent_ = {
          {const_cast<void*>(operation.send), in_place ? recv : send, operation.send_bytes(ranks)}};
      received_ = {{operation.recv, recv, operation.recv_bytes(ranks)}};
      return;
    }
    for (Message& message : messages_) {
      void*& next = message.sends ? send : recv;
      (message.sends ? sent_ : received_).push_back({message.data, next, message.bytes});
      message.data = next;
      next = offset_bytes(next, message.bytes);
    }
    operation_.messages = messages_;
  }

  const Communicator::Operation& operation() const { return operation_; }
  const std::vector<RelayedPart>& sent() const { return sent_; }
  const std::vector<RelayedPart>& received() const { return received_; }

 private:
  Communicator::Operation operation_;
  std::vector<Message> messages_;
  std::vector<RelayedPart> sent_, received_;
};

/// The memory between of operations under way; the next operation that needs no more reuses it.
template <class Memory>
class RelayPool {
 public:
  struct Relay {
    size_t send_bytes, recv_bytes;
    Memory send, recv;
    bool in_use = false;
  };

  /// Returns free memory, of `allocate(bytes)` where there is none.
  template <class Allocate>
  Relay& find(size_t send_bytes, size_t recv_bytes, const Allocate& allocate) {
    for (Relay& relay : relays_) {
      if (!relay.in_use && relay.send_bytes >= send_bytes && relay.recv_bytes >= recv_bytes) {
        return relay;
      }
    }
    return relays_.emplace_back(
        Relay{send_bytes, recv_bytes, allocate(send_bytes), allocate(recv_bytes)});
  }

 private:
  std::list<Relay> relays_;
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
