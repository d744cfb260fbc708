#pragma once
// Communication between ranks. A Communicator moves bytes and never computes: our own operations
// make sums in rank order (comm/exchange/reduce.h, comm/exchange/gradient_exchange.h), so results
// do not depend on the library below. Collectives are started in the same order on all ranks of a
// group, return at once (but for copies through host memory, comm/backends/backends.h) and overlap
// with other work; buffers are on the device of `stream`, belong to the caller and must not be
// touched until the Work is done. One thread of a rank uses it. Errors are CommErrors that name the
// rank, the operation and, if known, the ranks that are missing.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "comm/exchange/transfer.h"
#include "comm/topology.h"
#include "comm/work.h"
#include "device/stream.h"

namespace fp8train {

/// Bytes that a rank has sent to others, by class of link.
struct Traffic {
  uint64_t within_node = 0;
  uint64_t between_nodes = 0;

  uint64_t total() const { return within_node + between_nodes; }
  Traffic& operator+=(const Traffic& other) {
    within_node += other.within_node;
    between_nodes += other.between_nodes;
    return *this;
  }
  bool operator==(const Traffic&) const = default;
};

/// The operations that ranks can run together. All but `messages` are run by all ranks.
enum class Collective : uint8_t { all_gather, all_to_all, broadcast, barrier, messages };

/// "all_gather"
const char* name_of(Collective collective);

/// The numbers that the ranks of a group have among all ranks of the run.
class WorldRanks {
 public:
  /// All ranks.
  WorldRanks() = default;
  explicit WorldRanks(std::vector<int> ranks)
      : ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))) {}
  int operator[](int rank) const {
    return ranks_ == nullptr ? rank : ranks_->at(static_cast<size_t>(rank));
  }

 private:
  std::shared_ptr<const std::vector<int>> ranks_;
};

class Communicator : NotCopied {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return topology_.size(); }
  int local_rank() const { return topology_.local_rank(rank_); }
  int local_size() const {
    return static_cast<int>(topology_.ranks_of_node(topology_.node_of(rank_)).size());
  }
  int node() const { return topology_.node_of(rank_); }
  int nodes() const { return topology_.nodes(); }
  const Topology& topology() const { return topology_; }
  int world_rank(int rank) const { return world_ranks_[rank]; }

  /// Returns the stream to pass for messages in host memory.
  static Stream host_stream() { return {DeviceKind::cpu, nullptr, nullptr}; }

  /// The arguments of a collective; each function below says which of them it reads.
  struct Operation {
    Collective collective;
    Stream stream;
    const void* send = nullptr;
    void* recv = nullptr;
    size_t bytes = 0;
    int root = 0;
    std::span<const Message> messages = {};
    /// Counts the collectives of a communicator, or its calls with messages; run() sets it.
    uint64_t sequence = 0;

    const char* name() const { return name_of(collective); }
    /// Return the bytes of `send` and of `recv`, or of all messages sent and received, with this
    /// number of ranks.
    size_t send_bytes(int ranks) const;
    size_t recv_bytes(int ranks) const;
  };
  /// Starts the operation and counts its traffic. Throws CommError if it cannot start.
  Work run(Operation operation);

  /// Rank r's `bytes` bytes of `send` come to recv + r * bytes of every rank. `send` may be this
  /// rank's own part of `recv`. Where ranks_per_node() of the topology is not 0, each byte crosses
  /// to each other node once.
  Work all_gather(Stream stream, const void* send, void* recv, size_t bytes) {
    return run({Collective::all_gather, stream, send, recv, bytes});
  }

  /// Bytes r * bytes .. of `send` come to rank r, which finds those of rank q at recv + q * bytes.
  /// `send` and `recv` do not overlap.
  Work all_to_all(Stream stream, const void* send, void* recv, size_t bytes) {
    return run({Collective::all_to_all, stream, send, recv, bytes});
  }

  /// The `bytes` bytes of `data` of rank `root` come to `data` of all ranks.
  Work broadcast(Stream stream, void* data, size_t bytes, int root) {
    return run({Collective::broadcast, stream, data, data, bytes, root});
  }

  /// Done when all ranks have started it.
  Work barrier() { return run({Collective::barrier, host_stream()}); }

  /// Sends and receives, as one operation of this rank; the others that its messages name have
  /// theirs, and the rest none. The nth message to a rank is the nth that it receives from this
  /// one, of as many bytes, at least 1. It is over here when its receiver takes it. `messages` need
  /// not outlive the call.
  Work exchange(Stream stream, std::span<const Message> messages) {
    return run({.collective = Collective::messages, .stream = stream, .messages = messages});
  }

  /// Returns the value of each rank, in rank order, so that hosts can agree. Waits. T is trivially
  /// copyable.
  template <typename T>
  std::vector<T> all_gather_values(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<size_t>(size()));
    all_gather(host_stream(), &value, all.data(), sizeof(T)).wait();
    return all;
  }
  /// Returns whether `mine` is true on any rank. Collective; waits.
  bool any_rank(bool mine);

  /// Makes a communicator of the ranks whose color is this one's, ordered as here, with this
  /// communicator's time-out. Collective: each rank passes the colors of all ranks, at least 0. The
  /// traffic of a group counts as that of this communicator. Throws CommError.
  std::unique_ptr<Communicator> group(std::span<const int> color_of_rank);
  /// All ranks, with an order of collectives of its own.
  std::unique_ptr<Communicator> duplicate();
  /// The ranks of this rank's node.
  std::unique_ptr<Communicator> node_group();
  /// The ranks of equal local rank on all nodes. Throws InternalError unless nodes have equally
  /// many.
  std::unique_ptr<Communicator> peer_group();

  /// Returns the bytes that this rank's collectives have sent by the algorithms of
  /// comm/exchange/transfer.h. A library with algorithms of its own (NCCL) may have sent other
  /// amounts.
  const Traffic& traffic() const { return *traffic_; }

  /// Sets the time after which operations fail with TimeoutError; time in which the process was
  /// stopped does not count. Default: 10 minutes.
  void set_timeout(double seconds) { timeout_seconds_ = seconds; }
  double timeout() const { return timeout_seconds_; }

  /// Whether collectives of a GPU's memory run in the order of streams, without the host: what
  /// follows one can be submitted at once.
  virtual bool in_stream_order() const { return false; }

  /// Tells the other ranks that this one cannot continue: their operations fail. MPI ends them with
  /// the exit code (and this process too). Any thread may call it. Throws CommError where they
  /// cannot be notified within some seconds.
  virtual void fail(int exit_code) = 0;

  /// "mpi: rank 1 of 4, node 0 of 2" and the like.
  std::string description() const;

 protected:
  /// `traffic` is that of the communicator from which a group is made; null: the group counts its
  /// own.
  Communicator(Topology topology, int rank, std::shared_ptr<Traffic> traffic = nullptr);
  /// The ranks of `inner`, with its time-out and traffic of their own.
  explicit Communicator(const Communicator* inner, std::shared_ptr<Traffic> traffic = nullptr);
  const std::shared_ptr<Traffic>& counters() const { return traffic_; }

  virtual Work start(const Operation& operation) = 0;

  /// The ranks of equal `color`, of which this one is number `rank`.
  struct Subgroup {
    std::span<const int> color_of_rank;
    int color = 0;
    Topology topology;
    int rank = 0;
  };
  virtual std::unique_ptr<Communicator> make_group(const Subgroup& group) = 0;
  virtual const char* kind() const = 0;
  const WorldRanks& world_ranks() const { return world_ranks_; }
  /// Returns the operation's name; "messages (number 3 to rank 1, 64 bytes)" and the like.
  std::string words(const Operation& operation) const;

 private:
  std::vector<Message> numbered(std::span<const Message> messages);

  Topology topology_;
  int rank_;
  WorldRanks world_ranks_;
  uint64_t number_;  ///< number among the communicators of this process
  uint64_t sequence_ = 0, message_calls_ = 0;
  std::map<std::pair<int, bool>, uint64_t> message_numbers_;  ///< by peer and Message::sends
  double timeout_seconds_ = 600.0;
  std::shared_ptr<Traffic> traffic_;
};

/// Return the bytes that one rank sends in an all_gather and an all_to_all of `bytes` bytes, in a
/// broadcast, by the algorithms of comm/exchange/transfer.h, and in messages.
Traffic all_gather_traffic(const Topology& topology, int rank, size_t bytes);
Traffic all_to_all_traffic(const Topology& topology, int rank, size_t bytes);
Traffic broadcast_traffic(const Topology& topology, int rank, size_t bytes, int root);
Traffic message_traffic(const Topology& topology, int rank, std::span<const Message> messages);

}  // namespace fp8train
