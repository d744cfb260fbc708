#include <utility>

#include "base/error.h"
#include "comm/host_copy.h"
#include "comm/message_transport.h"

namespace fp8train {
namespace {

class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(std::unique_ptr<MessageTransport> transport, Topology topology, int rank,
                      std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(std::move(topology), rank, std::move(traffic)),
        transport_(std::move(transport)),
        barrier_bytes_(2 * static_cast<size_t>(size())) {}

  std::unique_ptr<Communicator> duplicate() override { return group(0, topology(), rank()); }
  std::unique_ptr<Communicator> node_group() override {
    return group(node(), Topology::blocks(local_size(), local_size()), local_rank());
  }
  std::unique_ptr<Communicator> peer_group() override {
    check(topology().ranks_per_node() > 0, "peers need nodes of equally many ranks");
    return group(local_rank(), Topology::blocks(nodes(), 1), node());
  }
  void fail(int exit_code) override { transport_->fail(exit_code); }

 protected:
  Work start_all_gather(const Operation& operation) override {
    if (!moves_bytes(operation.stream, kind(), operation.name)) {
      return {};
    }
    copy_bytes(own_place(operation), operation.send, operation.bytes);
    return start(operation,
                 all_gather_transfer(topology(), rank(), operation.recv, operation.bytes));
  }
  Work start_all_to_all(const Operation& operation) override {
    if (!moves_bytes(operation.stream, kind(), operation.name)) {
      return {};
    }
    const size_t before = static_cast<size_t>(rank()) * operation.bytes;
    copy_bytes(own_place(operation), offset_bytes(operation.send, before), operation.bytes);
    return start(operation, all_to_all_transfer(size(), rank(), operation.send, operation.recv,
                                                operation.bytes));
  }
  Work start_broadcast(const Operation& operation) override {
    if (!moves_bytes(operation.stream, kind(), operation.name)) {
      return {};
    }
    return start(operation, broadcast_transfer(topology(), rank(), operation.recv, operation.bytes,
                                               operation.root));
  }
  Work start_barrier(const Operation& operation) override {
    // What the bytes are does not matter, nor that barriers share them.
    char* bytes = barrier_bytes_.data();
    return start(operation, all_to_all_transfer(size(), rank(), bytes, bytes + size(), 1));
  }
  const char* kind() const override { return transport_->kind(); }

 private:
  void* own_place(const Operation& operation) const {
    return offset_bytes(operation.recv, static_cast<size_t>(rank()) * operation.bytes);
  }

  std::unique_ptr<Communicator> group(int color, Topology topology, int rank) {
    auto made = std::make_unique<MessageCommunicator>(transport_->split(color, rank, timeout()),
                                                      std::move(topology), rank, counters());
    made->set_timeout(timeout());
    return made;
  }

  Work start(const Operation& operation, Transfer transfer) {
    return transport_->start(operation.name, operation.sequence, std::move(transfer), timeout());
  }

  std::unique_ptr<MessageTransport> transport_;
  std::vector<char> barrier_bytes_;
};

}  // namespace

std::unique_ptr<Communicator> make_message_communicator(std::unique_ptr<MessageTransport> transport,
                                                        Topology topology, int rank) {
  return std::make_unique<MessageCommunicator>(std::move(transport), std::move(topology), rank);
}

}  // namespace fp8train
