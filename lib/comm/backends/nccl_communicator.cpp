// Ranks on GPUs, over NCCL. Collectives run on the device's side stream, ordered by events against
// the stream of the caller, so that they overlap with its work and nobody on the host waits. Bytes
// are moved as what they are. Host memory goes over the communicator that the ranks met by; where
// they met by a file it goes through memory of the GPU.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/not_copied.h"
#include "comm/backends/backends.h"
#include "comm/backends/nccl_group.h"
#include "comm/backends/rendezvous.h"
#include "comm/relayed_work.h"

namespace fp8train {
namespace {

/// The stream of the caller waits; the host does not.
class NcclWork final : public PendingWork, NotCopied {
 public:
  NcclWork(std::shared_ptr<NcclFamily> family, std::string what, std::shared_ptr<StreamEvent> end,
           const Stream& stream)
      : family_(std::move(family)), what_(std::move(what)), end_(std::move(end)), stream_(stream) {}
  ~NcclWork() override {
    if (!waited_ && !family_->watchdog().failed()) {  // before its memory is another's
      try {
        hold();
      } catch (const std::exception&) {  // the GPU has failed, as all that follows will say
        static_cast<void>(0);
      }
    }
  }

  bool done() override {
    family_->watchdog().check(what_);
    return true;
  }
  void wait() override {
    family_->watchdog().check(what_);
    hold();
    waited_ = true;
  }

 private:
  void hold() {
    if (!family_->side().is(stream_)) {
      end_->hold(stream_);
    }
  }

  std::shared_ptr<NcclFamily> family_;
  std::string what_;
  std::shared_ptr<StreamEvent> end_;
  Stream stream_;
  bool waited_ = false;
};

class NcclCommunicator final : public Communicator {
 public:
  /// `host`: null where host memory goes through the GPU; `owned_host` where it is this one's.
  NcclCommunicator(std::shared_ptr<NcclGroup> group, Topology topology, int rank,
                   Communicator* host, std::unique_ptr<Communicator> owned_host = nullptr,
                   std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(std::move(topology), rank, std::move(traffic)),
        group_(std::move(group)),
        owned_host_(std::move(owned_host)),
        host_(owned_host_ != nullptr ? owned_host_.get() : host) {}

  bool in_stream_order() const override { return true; }

  void fail(int exit_code) override {
    family().watchdog().fail(
        fmt::format("rank {} has given up with exit code {}", family().rank(), exit_code));
    if (host_ != nullptr) {
      host_->fail(exit_code);
    }
  }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    std::unique_ptr<Communicator> host =
        host_ != nullptr ? host_->group(group.color_of_rank) : nullptr;
    return std::make_unique<NcclCommunicator>(
        group_->split(group.color, group.rank, group.topology.size(), timeout()), group.topology,
        group.rank, nullptr, std::move(host), counters());
  }
  Work start(const Operation& operation) override {
    if (operation.collective != Collective::barrier) {
      return move(operation);
    }
    if (host_ != nullptr) {
      host_->set_timeout(timeout());
      return host_->run(operation);
    }
    Operation gather = operation;  // what the bytes are does not matter
    barrier_bytes_.resize(static_cast<size_t>(size()) + 1);
    gather.send = barrier_bytes_.data();
    gather.recv = barrier_bytes_.data() + 1;
    gather.bytes = 1;
    return move(gather);
  }
  const char* kind() const override { return "nccl"; }

 private:
  NcclFamily& family() const { return *group_->family(); }
  std::string words(const Operation& operation) const {
    return operation.collective == Collective::messages
               ? fmt::format("rank {}: {}", family().rank(), Communicator::words(operation))
               : fmt::format("rank {}: {} {} of {} bytes", family().rank(), operation.name(),
                             operation.sequence, operation.bytes);
  }

  Work move(const Operation& operation) {
    if (operation.stream.kind() == DeviceKind::meta || operation.bytes == 0) {
      return {};
    }
    if (operation.stream.kind() == DeviceKind::cuda) {
      return run_on_gpu(operation, operation.stream);
    }
    if (host_ != nullptr) {
      family().watchdog().check(words(operation));
      host_->set_timeout(timeout());
      return host_->run(operation);
    }
    Device& device = family().device();
    auto& passage = passages_.find(
        operation.send_bytes(size()), operation.recv_bytes(size()),
        [&](size_t bytes) { return Buffer(device, bytes, MemoryCategory::communication); });
    const RelayedOperation relayed(operation, size(), passage.send.data(), passage.recv.data());
    for (const RelayedPart& part : relayed.sent()) {
      device.copy_from_host(part.relay, part.data, part.bytes);
    }
    passage.in_use = true;
    return Work(std::make_unique<RelayedWork>(
        run_on_gpu(relayed.operation(), device.stream()),
        [family = group_->family(), what = words(operation), received = relayed.received()] {
          for (const RelayedPart& part : received) {
            family->device().copy_to_host(part.data, part.relay, part.bytes);
          }
          family->watchdog().check(what);  // an aborted operation has no result
        },
        [&passage] { passage.in_use = false; }));
  }

  Work run_on_gpu(const Operation& operation, const Stream& stream) {
    NcclFamily& of_rank = family();
    const NcclCall call = {.collective = operation.collective,
                           .what = words(operation),
                           .timeout = timeout(),
                           .send = operation.send,
                           .recv = operation.recv,
                           .bytes = operation.bytes,
                           .root = operation.root,
                           .messages = operation.messages};
    of_rank.watchdog().check(call.what);
    of_rank.side().follow(stream);
    group_->start(call);
    auto end = of_rank.side().mark_end();
    of_rank.watchdog().watch({.what = call.what, .timeout = timeout(), .end = end});
    return Work(std::make_unique<NcclWork>(group_->family(), call.what, end, stream));
  }

  std::shared_ptr<NcclGroup> group_;
  std::unique_ptr<Communicator> owned_host_;
  Communicator* host_;
  RelayPool<Buffer> passages_;
  std::vector<char> barrier_bytes_;
};

/// NCCL would hang, or say so in words of its own.
void check_own_gpu(Communicator& host, const Device& device) {
  std::array<char, 64> mine = {};
  const std::string id = device.hardware_id();
  std::memcpy(mine.data(), id.data(), std::min(id.size(), mine.size() - 1));
  const auto all = host.all_gather_values(mine);
  for (int other = 0; other < host.size(); ++other) {
    if (other != host.rank() && host.topology().node_of(other) == host.node() &&
        all[static_cast<size_t>(other)] == mine) {
      throw ConfigError(fmt::format(
          "ranks {} and {} are on one GPU ({}), and NCCL needs one each: start as many ranks of a "
          "node as it has GPUs and let each see them all (--gpu-bind=none), or set comm.backend: "
          "mpi",
          std::min(other, host.rank()), std::max(other, host.rank()), id));
    }
  }
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device) {
  check_own_gpu(host, device);
  NcclId id = {};
  if (host.rank() == 0) {
    id = new_nccl_id();
  }
  host.broadcast({DeviceKind::cpu, nullptr, nullptr}, id.data(), id.size(), 0).wait();
  auto made = std::make_unique<NcclCommunicator>(
      join_nccl(id, device, host.rank(), host.size(), host.timeout()), host.topology(), host.rank(),
      &host);
  made->set_timeout(host.timeout());
  return made;
}

std::unique_ptr<Communicator> make_nccl_communicator(const Rendezvous& rendezvous, Device& device) {
  NcclId id = {};
  if (rendezvous.rank == 0) {
    id = new_nccl_id();
  }
  const FileStore note(rendezvous, id.data(), id.size());
  const std::shared_ptr<NcclGroup> group =
      join_nccl(id, device, rendezvous.rank, rendezvous.size, rendezvous.timeout_seconds);
  NcclCommunicator strangers(group, Topology::blocks(rendezvous.size, rendezvous.size),
                             rendezvous.rank, nullptr);
  strangers.set_timeout(rendezvous.timeout_seconds);
  auto made = std::make_unique<NcclCommunicator>(
      group, Topology::of_node_names(strangers.all_gather_values(rendezvous.node)), rendezvous.rank,
      nullptr);
  made->set_timeout(rendezvous.timeout_seconds);
  return made;
}

}  // namespace fp8train
