// Communicators of one rank: one that is all there is, and one that dry-runs a rank of a run.

#include <algorithm>
#include <utility>

#include "comm/backends/backends.h"
#include "comm/backends/host_copy.h"

namespace fp8train {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(const char* kind, Topology topology, int rank,
                   std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(std::move(topology), rank, std::move(traffic)), kind_(kind) {}

  void fail(int /*exit_code*/) override {}

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    return std::make_unique<SelfCommunicator>(kind_, group.topology, group.rank, counters());
  }
  Work start(const Operation& operation) override {
    if (operation.collective == Collective::all_gather) {
      receive(operation, operation.send);
    } else if (operation.collective == Collective::all_to_all) {
      const size_t before = static_cast<size_t>(rank()) * operation.bytes;
      receive(operation, offset_bytes(operation.send, before));
    } else if (operation.collective == Collective::messages &&
               moves_bytes(operation.stream, kind_, operation.name())) {
      for (const Message& message : operation.messages) {
        if (!message.sends) {
          clear(message.data, message.bytes);
        }
      }
    }
    return {};
  }
  const char* kind() const override { return kind_; }

 private:
  /// This rank's own part, and zeros for those of others.
  void receive(const Operation& operation, const void* own) {
    const size_t bytes = operation.bytes;
    void* part = offset_bytes(operation.recv, static_cast<size_t>(rank()) * bytes);
    if ((size() == 1 && part == own) || !moves_bytes(operation.stream, kind_, operation.name())) {
      return;
    }
    copy_bytes(part, own, bytes);
    for (int other = 0; other < size(); ++other) {
      if (other != rank()) {
        clear(offset_bytes(operation.recv, static_cast<size_t>(other) * bytes), bytes);
      }
    }
  }

  static void clear(void* data, size_t bytes) {
    std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0});
  }

  const char* kind_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>("self", Topology(), 0);
}

std::unique_ptr<Communicator> make_dry_run(const Topology& topology, int rank) {
  return std::make_unique<SelfCommunicator>("dry run", topology, rank);
}

}  // namespace fp8train
