// Communicators of one rank: one that is all there is, and one that dry-runs a rank of a run.

#include <algorithm>
#include <utility>

#include "comm/backends.h"
#include "comm/host_copy.h"

namespace fp8train {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(const char* kind, Topology topology, int rank,
                   std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(std::move(topology), rank, std::move(traffic)), kind_(kind) {}

  std::unique_ptr<Communicator> duplicate() override {
    return std::make_unique<SelfCommunicator>(kind_, topology(), rank(), counters());
  }
  std::unique_ptr<Communicator> node_group() override {
    return std::make_unique<SelfCommunicator>(kind_, Topology::blocks(local_size(), local_size()),
                                              local_rank(), counters());
  }
  std::unique_ptr<Communicator> peer_group() override {
    check(topology().ranks_per_node() > 0, "peers need nodes of equally many ranks");
    return std::make_unique<SelfCommunicator>(kind_, Topology::blocks(nodes(), 1), node(),
                                              counters());
  }
  void fail(int /*exit_code*/) override {}

 protected:
  Work start_all_gather(const Operation& operation) override {
    receive(operation, operation.send);
    return {};
  }
  Work start_all_to_all(const Operation& operation) override {
    receive(operation, offset_bytes(operation.send, static_cast<size_t>(rank()) * operation.bytes));
    return {};
  }
  Work start_broadcast(const Operation& /*operation*/) override { return {}; }
  Work start_barrier(const Operation& /*operation*/) override { return {}; }
  const char* kind() const override { return kind_; }

 private:
  /// This rank's own part, and zeros for those of others.
  void receive(const Operation& operation, const void* own) {
    const size_t bytes = operation.bytes;
    void* place = offset_bytes(operation.recv, static_cast<size_t>(rank()) * bytes);
    if ((size() == 1 && place == own) || !moves_bytes(operation.stream, kind_, operation.name)) {
      return;
    }
    copy_bytes(place, own, bytes);
    for (int other = 0; other < size(); ++other) {
      if (other != rank()) {
        std::fill_n(static_cast<std::byte*>(
                        offset_bytes(operation.recv, static_cast<size_t>(other) * bytes)),
                    bytes, std::byte{0});
      }
    }
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
