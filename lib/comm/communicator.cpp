#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"
#include "base/flight_recorder.h"

namespace fp8train {
namespace {

/// Seconds after which the watchdog ends a wait that has not ended itself at its time-out.
constexpr double kBackstop = 30;

uint64_t next_number() {
  static std::atomic<uint64_t> numbers = 0;
  return numbers++;
}

}  // namespace

Communicator::Communicator(Topology topology, int rank, std::shared_ptr<Traffic> traffic)
    : topology_(std::move(topology)),
      rank_(rank),
      number_(next_number()),
      traffic_(traffic != nullptr ? std::move(traffic) : std::make_shared<Traffic>()) {
  check(rank >= 0 && rank < size(), "a rank is one of those of its communicator");
}

Communicator::Operation Communicator::next(const char* name, Stream stream) {
  return {.name = name, .sequence = sequence_++, .stream = stream};
}

/// Where collectives follow streams, the host does not know when one is over.
template <typename Start>
Work Communicator::shown(const Operation& operation, const Traffic& sent, const Start& start) {
  *traffic_ += sent;
  const TraceFlight flight(TraceKind::message, operation.name, sent.total());
  Work work = start();
  if (flight.active() && !in_stream_order()) {
    work.show(flight);
  }
  return recorded(operation, std::move(work));
}

Work Communicator::recorded(const Operation& operation, Work work) const {
  FlightRecorder* const recorder = flight_recorder();
  if (recorder != nullptr && work.is_pending()) {
    work.record(
        *recorder,
        recorder->begin_operation(operation.name, number_, operation.sequence, operation.bytes),
        timeout() + kBackstop);
  }
  return work;
}

Work Communicator::all_gather(Stream stream, const void* send, void* recv, size_t bytes) {
  Operation operation = next("all_gather", stream);
  operation.send = send;
  operation.recv = recv;
  operation.bytes = bytes;
  return shown(operation, all_gather_traffic(topology_, rank_, bytes),
               [&] { return start_all_gather(operation); });
}

Work Communicator::all_to_all(Stream stream, const void* send, void* recv, size_t bytes) {
  Operation operation = next("all_to_all", stream);
  operation.send = send;
  operation.recv = recv;
  operation.bytes = bytes;
  return shown(operation, all_to_all_traffic(topology_, rank_, bytes),
               [&] { return start_all_to_all(operation); });
}

Work Communicator::broadcast(Stream stream, void* data, size_t bytes, int root) {
  check(root >= 0 && root < size(), "broadcast: the root is one of the ranks");
  Operation operation = next("broadcast", stream);
  operation.send = data;
  operation.recv = data;
  operation.bytes = bytes;
  operation.root = root;
  return shown(operation, broadcast_traffic(topology_, rank_, bytes, root),
               [&] { return start_broadcast(operation); });
}

Work Communicator::barrier() {
  const Operation operation = next("barrier", host_stream());
  return recorded(operation, start_barrier(operation));
}

bool Communicator::any_rank(bool mine) {
  const std::vector<uint8_t> all = all_gather_values(static_cast<uint8_t>(mine ? 1 : 0));
  return std::any_of(all.begin(), all.end(), [](uint8_t one) { return one != 0; });
}

std::string Communicator::description() const {
  return fmt::format("{}: rank {} of {}, node {} of {}", kind(), rank(), size(), node(), nodes());
}

Traffic all_gather_traffic(const Topology& topology, int rank, size_t bytes) {
  const auto each = static_cast<uint64_t>(topology.ranks_per_node());
  const auto nodes = static_cast<uint64_t>(topology.nodes());
  if (each == 0) {
    return all_to_all_traffic(topology, rank, bytes);
  }
  // To the ranks of equal position on other nodes, then what came from them within the node.
  return {.within_node = (each - 1) * nodes * bytes, .between_nodes = (nodes - 1) * bytes};
}

Traffic all_to_all_traffic(const Topology& topology, int rank, size_t bytes) {
  const auto here = static_cast<uint64_t>(topology.ranks_of_node(topology.node_of(rank)).size());
  const auto all = static_cast<uint64_t>(topology.size());
  return {.within_node = (here - 1) * bytes, .between_nodes = (all - here) * bytes};
}

Traffic broadcast_traffic(const Topology& topology, int rank, size_t bytes, int root) {
  const int node = topology.node_of(rank);
  const auto& mates = topology.ranks_of_node(node);
  const bool at_root = node == topology.node_of(root);
  const int speaker = at_root ? root : mates.front();
  Traffic traffic;
  if (rank == speaker) {
    traffic.within_node = (mates.size() - 1) * bytes;
  }
  if (rank == root) {
    traffic.between_nodes = static_cast<uint64_t>(topology.nodes() - 1) * bytes;
  }
  return traffic;
}

}  // namespace fp8train
