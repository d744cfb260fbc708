// Memory of a GPU through host memory, for communicators that move only that.

#include <list>
#include <utility>

#include "comm/backends/backends.h"
#include "comm/relayed_work.h"
#include "device/device.h"

namespace fp8train {
namespace {

/// Host memory of one operation, reused by the next of the same size.
struct Staging {
  std::vector<std::byte> send, recv;
  bool in_use = false;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Communicator& host, Device& device)
      : Communicator(host.topology(), host.rank()), host_(&host), device_(&device) {
    set_timeout(host.timeout());
  }
  StagedCommunicator(std::unique_ptr<Communicator> host, Device& device,
                     std::shared_ptr<Traffic> traffic)
      : Communicator(host->topology(), host->rank(), std::move(traffic)),
        owned_host_(std::move(host)),
        host_(owned_host_.get()),
        device_(&device) {
    set_timeout(host_->timeout());
  }

  void fail(int exit_code) override { host_->fail(exit_code); }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    return std::make_unique<StagedCommunicator>(host_->group(group.kind), *device_, counters());
  }
  Work start(const Operation& operation) override {
    host_->set_timeout(timeout());
    Operation on_host = operation;
    on_host.stream = host_stream();
    if (operation.stream.kind() == DeviceKind::cpu) {
      return host_->run(on_host);
    }
    if (operation.stream.kind() == DeviceKind::meta) {
      return {};
    }
    const size_t send_bytes = operation.send_bytes(size());
    const size_t recv_bytes = operation.recv_bytes(size());
    Staging& memory = free_staging(send_bytes, recv_bytes);
    on_host.recv = memory.recv.data();
    // A broadcast sends what lies where it receives.
    const bool in_place = operation.collective == Collective::broadcast;
    std::byte* const sent = (in_place ? memory.recv : memory.send).data();
    device_->copy_to_host(sent, operation.send, send_bytes);
    on_host.send = sent;
    memory.in_use = true;
    return Work(std::make_unique<RelayedWork>(
        host_->run(on_host),
        [device = device_, to = operation.recv, &memory, recv_bytes] {
          device->copy_from_host(to, memory.recv.data(), recv_bytes);
        },
        [&memory] { memory.in_use = false; }));
  }
  const char* kind() const override { return "staged"; }

 private:
  Staging& free_staging(size_t send_bytes, size_t recv_bytes) {
    for (Staging& memory : staging_) {
      if (!memory.in_use && memory.send.size() >= send_bytes && memory.recv.size() >= recv_bytes) {
        return memory;
      }
    }
    return staging_.emplace_back(Staging{.send = std::vector<std::byte>(send_bytes),
                                         .recv = std::vector<std::byte>(recv_bytes)});
  }

  std::unique_ptr<Communicator> owned_host_;
  Communicator* host_;
  Device* device_;
  std::list<Staging> staging_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, Device& device) {
  return std::make_unique<StagedCommunicator>(host, device);
}

}  // namespace fp8train
