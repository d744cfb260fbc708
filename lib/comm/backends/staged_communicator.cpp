// Memory of a GPU through host memory, for communicators that move only that.

#include <utility>
#include <vector>

#include "comm/backends/backends.h"
#include "comm/relayed_work.h"
#include "device/device.h"

namespace fp8train {
namespace {

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Communicator& host, Device& device)
      : Communicator(&host), host_(&host), device_(&device) {}
  StagedCommunicator(std::unique_ptr<Communicator> host, Device& device,
                     std::shared_ptr<Traffic> traffic)
      : Communicator(host.get(), std::move(traffic)),
        owned_host_(std::move(host)),
        host_(owned_host_.get()),
        device_(&device) {}

  void fail(int exit_code) override { host_->fail(exit_code); }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    return std::make_unique<StagedCommunicator>(host_->group(group.color_of_rank), *device_,
                                                counters());
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
    auto& memory = relays_.find(operation.send_bytes(size()), operation.recv_bytes(size()),
                                [](size_t bytes) { return std::vector<std::byte>(bytes); });
    const RelayedOperation relayed(on_host, size(), memory.send.data(), memory.recv.data());
    for (const RelayedPart& part : relayed.sent()) {
      device_->copy_to_host(part.relay, part.data, part.bytes);
    }
    memory.in_use = true;
    return Work(std::make_unique<RelayedWork>(
        host_->run(relayed.operation()),
        [device = device_, received = relayed.received()] {
          for (const RelayedPart& part : received) {
            device->copy_from_host(part.data, part.relay, part.bytes);
          }
        },
        [&memory] { memory.in_use = false; }));
  }
  const char* kind() const override { return "staged"; }

 private:
  std::unique_ptr<Communicator> owned_host_;
  Communicator* host_;
  Device* device_;
  RelayPool<std::vector<std::byte>> relays_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, Device& device) {
  return std::make_unique<StagedCommunicator>(host, device);
}

}  // namespace fp8train
