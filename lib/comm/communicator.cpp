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

Traffic traffic_of(const Communicator::Operation& operation, const Topology& topology, int rank) {
  switch (operation.collective) {
    case Collective::all_gather:
      return all_gather_traffic(topology, rank, operation.bytes);
    case Collective::all_to_all:
      return all_to_all_traffic(topology, rank, operation.bytes);
    case Collective::broadcast:
      return broadcast_traffic(topology, rank, operation.bytes, operation.root);
    case Collective::barrier:
      break;
  }
  return {};
}

}  // namespace

const char* name_of(Collective collective) {
  constexpr const char* kNames[] = {"all_gather", "all_to_all", "broadcast", "barrier"};
  return kNames[static_cast<size_t>(collective)];
}

Communicator::Communicator(Topology topology, int rank, std::shared_ptr<Traffic> traffic)
    : topology_(std::move(topology)),
      rank_(rank),
      number_(next_number()),
      traffic_(traffic != nullptr ? std::move(traffic) : std::make_shared<Traffic>()) {
  check(rank >= 0 && rank < size(), "a rank is one of those of its communicator");
}

/// Where collectives follow streams, the host does not know when one is over.
Work Communicator::run(Operation operation) {
  check(operation.root >= 0 && operation.root < size(), "the root is one of the ranks");
  operation.sequence = sequence_++;
  const Traffic sent = traffic_of(operation, topology_, rank_);
  *traffic_ += sent;
  TraceFlight flight;
  if (operation.collective != Collective::barrier) {
    flight = TraceFlight(TraceKind::message, operation.name(), sent.total());
  }
  Work work = start(operation);
  if (flight.active() && !in_stream_order()) {
    work.show(flight);
  }
  FlightRecorder* const recorder = flight_recorder();
  if (recorder != nullptr && work.is_pending()) {
    work.record(
        *recorder,
        recorder->begin_operation(operation.name(), number_, operation.sequence, operation.bytes),
        timeout() + kBackstop);
  }
  return work;
}

std::unique_ptr<Communicator> Communicator::group(GroupKind kind) {
  Subgroup wanted = {kind, 0, topology_, rank_};
  if (kind == GroupKind::node) {
    wanted = {kind, node(), Topology::blocks(local_size(), local_size()), local_rank()};
  } else if (kind == GroupKind::peers) {
    check(topology_.ranks_per_node() > 0, "peers need nodes of equally many ranks");
    wanted = {kind, local_rank(), Topology::blocks(nodes(), 1), node()};
  }
  std::unique_ptr<Communicator> made = make_group(wanted);
  made->set_timeout(timeout());
  return made;
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
