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

size_t bytes_of(std::span<const Message> messages, bool sends) {
  size_t bytes = 0;
  for (const Message& message : messages) {
    bytes += message.sends == sends ? message.bytes : 0;
  }
  return bytes;
}

Traffic traffic_of(const Communicator::Operation& operation, const Topology& topology, int rank) {
  switch (operation.collective) {
    case Collective::all_gather:
      return all_gather_traffic(topology, rank, operation.bytes);
    case Collective::all_to_all:
      return all_to_all_traffic(topology, rank, operation.bytes);
    case Collective::broadcast:
      return broadcast_traffic(topology, rank, operation.bytes, operation.root);
    case Collective::messages:
      return message_traffic(topology, rank, operation.messages);
    case Collective::barrier:
      break;
  }
  return {};
}

}  // namespace

const char* name_of(Collective collective) {
  constexpr const char* kNames[] = {"all_gather", "all_to_all", "broadcast", "barrier", "messages"};
  return kNames[static_cast<size_t>(collective)];
}

size_t Communicator::Operation::send_bytes(int ranks) const {
  if (collective == Collective::messages) {
    return bytes_of(messages, true);
  }
  return collective == Collective::all_to_all ? static_cast<size_t>(ranks) * bytes : bytes;
}

size_t Communicator::Operation::recv_bytes(int ranks) const {
  if (collective == Collective::messages) {
    return bytes_of(messages, false);
  }
  return collective == Collective::broadcast ? bytes : static_cast<size_t>(ranks) * bytes;
}

Communicator::Communicator(Topology topology, int rank, std::shared_ptr<Traffic> traffic)
    : topology_(std::move(topology)),
      rank_(rank),
      number_(next_number()),
      traffic_(traffic != nullptr ? std::move(traffic) : std::make_shared<Traffic>()) {
  check(rank >= 0 && rank < size(), "a rank is one of those of its communicator");
}

Communicator::Communicator(const Communicator* inner, std::shared_ptr<Traffic> traffic)
    : topology_(inner->topology_),
      rank_(inner->rank_),
      world_ranks_(inner->world_ranks_),
      number_(next_number()),
      timeout_seconds_(inner->timeout_seconds_),
      traffic_(traffic != nullptr ? std::move(traffic) : std::make_shared<Traffic>()) {}

std::vector<Message> Communicator::numbered(std::span<const Message> messages) {
  std::vector<Message> all(messages.begin(), messages.end());
  for (Message& message : all) {
    check(message.peer >= 0 && message.peer < size() && message.peer != rank(),
          "a message goes to or comes from another rank");
    check(message.bytes > 0, "a message has bytes");
    message.number = message_numbers_[{message.peer, message.sends}]++;
  }
  return all;
}

/// Where collectives follow streams, the host does not know when one is over.
Work Communicator::run(Operation operation) {
  check(operation.root >= 0 && operation.root < size(), "the root is one of the ranks");
  std::vector<Message> messages;
  if (operation.collective == Collective::messages) {
    if (operation.messages.empty()) {
      return {};
    }
    messages = numbered(operation.messages);
    operation.messages = messages;
    operation.bytes = operation.send_bytes(size()) + operation.recv_bytes(size());
  }
  operation.sequence =
      operation.collective == Collective::messages ? message_calls_++ : sequence_++;
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

std::unique_ptr<Communicator> Communicator::group(std::span<const int> color_of_rank) {
  check(static_cast<int>(color_of_rank.size()) == size(), "every rank has a color");
  const auto [least, largest] = std::minmax_element(color_of_rank.begin(), color_of_rank.end());
  check(*least >= 0, "a color is at least 0");
  const int color = color_of_rank[static_cast<size_t>(rank_)];
  Subgroup wanted = {color_of_rank, color, topology_, rank_};
  WorldRanks world_ranks = world_ranks_;
  if (*least != *largest) {
    std::vector<int> members;  // by their numbers in the run
    std::vector<int> nodes;
    for (int other = 0; other < size(); ++other) {
      if (color_of_rank[static_cast<size_t>(other)] == color) {
        wanted.rank = other == rank_ ? static_cast<int>(members.size()) : wanted.rank;
        members.push_back(world_rank(other));
        nodes.push_back(topology_.node_of(other));
      }
    }
    wanted.topology = Topology::of_node_names(nodes);
    world_ranks = WorldRanks(std::move(members));
  }
  std::unique_ptr<Communicator> made = make_group(wanted);
  made->set_timeout(timeout());
  made->world_ranks_ = std::move(world_ranks);
  return made;
}

std::unique_ptr<Communicator> Communicator::duplicate() {
  return group(std::vector<int>(static_cast<size_t>(size()), 0));
}

std::unique_ptr<Communicator> Communicator::node_group() {
  return group(topology_.nodes_of_ranks());
}

std::unique_ptr<Communicator> Communicator::peer_group() {
  check(topology_.ranks_per_node() > 0, "peers need nodes of equally many ranks");
  return group(topology_.local_ranks());
}

std::string Communicator::words(const Operation& operation) const {
  constexpr size_t kNamed = 8;
  std::string text = operation.name();
  for (size_t i = 0; i < operation.messages.size(); ++i) {
    if (i == kNamed) {
      text += fmt::format("; {} more", operation.messages.size() - i);
      break;
    }
    const Message& message = operation.messages[i];
    text += fmt::format("{}number {} {} rank {}, {} bytes", i == 0 ? " (" : "; ", message.number,
                        message.sends ? "to" : "from", world_rank(message.peer), message.bytes);
  }
  return operation.messages.empty() ? text : text + ")";
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

Traffic message_traffic(const Topology& topology, int rank, std::span<const Message> messages) {
  Traffic traffic;
  for (const Message& message : messages) {
    const bool near = topology.node_of(message.peer) == topology.node_of(rank);
    (near ? traffic.within_node : traffic.between_nodes) += message.sends ? message.bytes : 0;
  }
  return traffic;
}

}  // namespace fp8train
