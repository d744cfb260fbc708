// Ranks as processes of MPI, for host memory.
//
// One thread of ours makes all calls of MPI (Open MPI 4 and MPICH make progress only inside of
// calls; MPI_THREAD_FUNNELED is enough). Collectives are messages between pairs of ranks, so that
// the ranks which are missing can be named and no count is limited to 2^31.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "comm/backends/backends.h"
#include "comm/backends/host_copy.h"
#include "comm/backends/progress_thread.h"
#include "comm/exchange/transfer.h"

namespace fp8train {
namespace {

constexpr size_t kLargestMessage = size_t{1} << 30;  // bytes; counts are int
constexpr int kTags = 16384;  // of collectives and of messages; every MPI has as many of both
constexpr int kPhases = 4;    // tags of one collective

/// Throws CommError with MPI's words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(fmt::format("{}: {}", what, std::string(text, static_cast<size_t>(length))));
}

void begin_mpi() {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init");
  if (provided < MPI_THREAD_FUNNELED) {
    throw CommError("this MPI allows no threads at all (MPI_THREAD_SINGLE); use another one");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

/// For the life of the process.
ProgressThread& mpi_thread() {
  static ProgressThread* const thread = new ProgressThread(begin_mpi, [] { MPI_Finalize(); });
  static const struct AtExit {
    ~AtExit() { thread->leave(); }
  } at_exit;
  return *thread;
}

class MpiRequest final : public PendingRequest {
 public:
  MpiRequest(MPI_Comm comm, WorldRanks world_ranks, std::string name,
             const Communicator::Operation& operation, Transfer transfer)
      : PendingRequest(std::move(name)),
        comm_(comm),
        world_ranks_(std::move(world_ranks)),
        are_messages_(operation.collective == Collective::messages),
        first_tag_(static_cast<int>(operation.sequence * kPhases % kTags)),
        transfer_(std::move(transfer)) {}

  void start() override { start_phase(); }

  bool progress() override {
    while (true) {
      int all = 0;
      statuses_.resize(requests_.size());
      const int code =
          MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
      if (code == MPI_ERR_IN_STATUS) {
        report();
      }
      check_mpi(code, name().c_str());
      if (all == 0) {
        return false;
      }
      check_lengths();
      if (++phase_ == transfer_.phases.size()) {
        return true;
      }
      start_phase();
    }
  }

  std::set<int> unfinished_peers() override {
    std::set<int> found;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int ready = 1;
      if (requests_[i] != MPI_REQUEST_NULL) {
        MPI_Request_get_status(requests_[i], &ready, MPI_STATUS_IGNORE);
      }
      if (ready == 0) {
        found.insert(parts_[i].peer);
      }
    }
    return found;
  }

  void abandon() override {
    for (MPI_Request& request : requests_) {
      if (request != MPI_REQUEST_NULL) {
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    }
    requests_.clear();
  }

 private:
  struct Part {
    int peer;
    bool sends;
    int bytes;
  };

  void start_phase() {
    requests_.clear();
    parts_.clear();
    for (const Message& message : transfer_.phases[phase_]) {
      const int tag = are_messages_ ? kTags + static_cast<int>(message.number % kTags)
                                    : first_tag_ + static_cast<int>(phase_);
      for (size_t at = 0; at < message.bytes; at += kLargestMessage) {
        const int bytes = static_cast<int>(std::min(kLargestMessage, message.bytes - at));
        parts_.push_back({message.peer, message.sends, bytes});
        start_part(parts_.back(), offset_bytes(message.data, at), tag);
      }
    }
  }

  /// A message that is sent is over when its receiver takes it, also where MPI would copy it away.
  void start_part(const Part& part, void* data, int tag) {
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    const auto send = are_messages_ ? MPI_Issend : MPI_Isend;
    const int code = part.sends
                         ? send(data, part.bytes, MPI_BYTE, part.peer, tag, comm_, &request)
                         : MPI_Irecv(data, part.bytes, MPI_BYTE, part.peer, tag, comm_, &request);
    check_mpi(code, "starting a message");
  }

  int world_rank(const Part& part) const { return world_ranks_[part.peer]; }

  void report() const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int code = statuses_[i].MPI_ERROR;
      if (code != MPI_SUCCESS && code != MPI_ERR_PENDING) {
        check_mpi(code, fmt::format("{} bytes {} rank {}", parts_[i].bytes,
                                    parts_[i].sends ? "to" : "from", world_rank(parts_[i]))
                            .c_str());
      }
    }
  }

  void check_lengths() const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      int bytes = parts_[i].bytes;
      if (!parts_[i].sends) {
        MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
      }
      if (bytes != parts_[i].bytes) {
        throw CommError(fmt::format("rank {} sends {} bytes where this rank receives {}",
                                    world_rank(parts_[i]), bytes, parts_[i].bytes));
      }
    }
  }

  MPI_Comm comm_;
  WorldRanks world_ranks_;
  bool are_messages_;
  int first_tag_;
  Transfer transfer_;
  size_t phase_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;  // of requests_
  std::vector<MPI_Status> statuses_;
};

class MpiWork final : public PendingWork, NotCopied {
 public:
  /// `rank`: this one, in the communicator.
  MpiWork(std::shared_ptr<PendingRequest> request, WorldRanks world_ranks, int rank, double timeout)
      : request_(std::move(request)),
        world_ranks_(std::move(world_ranks)),
        who_(fmt::format("rank {}", world_ranks_[rank])),
        timeout_(timeout) {}

  ~MpiWork() override {
    try {
      if (!request_->is_over(who_)) {
        mpi_thread().abandon(request_);
      }
    } catch (...) {  // a destructor must not throw; a request that has failed is over
      static_cast<void>(0);
    }
  }

  bool done() override { return request_->is_over(who_); }

  void wait() override {
    if (request_->wait(timeout_, who_)) {
      return;
    }
    std::set<int> missing;
    for (const int peer : mpi_thread().unfinished_peers(request_)) {
      missing.insert(world_ranks_[peer]);
    }
    throw TimeoutError(fmt::format(
        "{}: {} did not end in {} s; ranks that have not answered: {}", who_, request_->name(),
        timeout_, missing.empty() ? "unknown" : fmt::format("{}", fmt::join(missing, ", "))));
  }

  double ended() override { return request_->ended_at(); }

 private:
  std::shared_ptr<PendingRequest> request_;
  WorldRanks world_ranks_;
  std::string who_;
  double timeout_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, Topology topology, int rank,
                  std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(std::move(topology), rank, std::move(traffic)),
        comm_(comm),
        barrier_bytes_(2 * static_cast<size_t>(size())) {}

  void fail(int exit_code) override {
    mpi_thread().run_last("MPI_Abort", [exit_code] { MPI_Abort(MPI_COMM_WORLD, exit_code); });
  }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    const char* const what = "splitting a communicator";
    const auto made = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
    mpi_thread().run(what, timeout(),
                     [comm = comm_, color = group.color, rank = group.rank, made, what] {
                       check_mpi(MPI_Comm_split(comm, color, rank, made.get()), what);
                     });
    return std::make_unique<MpiCommunicator>(*made, group.topology, group.rank, counters());
  }

  Work start(const Operation& operation) override {
    if (!moves_bytes(operation.stream, kind(), operation.name())) {
      return {};
    }
    auto request = std::make_shared<MpiRequest>(comm_, world_ranks(), words(operation), operation,
                                                transfer_of(operation));
    mpi_thread().start(request);
    return Work(std::make_unique<MpiWork>(request, world_ranks(), rank(), timeout()));
  }
  const char* kind() const override { return "mpi"; }

 private:
  /// Its messages, once this rank's own part is where it is received.
  Transfer transfer_of(const Operation& operation) {
    const size_t bytes = operation.bytes;
    const size_t before = static_cast<size_t>(rank()) * bytes;
    switch (operation.collective) {
      case Collective::all_gather:
        copy_bytes(offset_bytes(operation.recv, before), operation.send, bytes);
        return all_gather_transfer(topology(), rank(), operation.recv, bytes);
      case Collective::all_to_all:
        copy_bytes(offset_bytes(operation.recv, before), offset_bytes(operation.send, before),
                   bytes);
        return all_to_all_transfer(size(), rank(), operation.send, operation.recv, bytes);
      case Collective::broadcast:
        return broadcast_transfer(topology(), rank(), operation.recv, bytes, operation.root);
      case Collective::messages:
        return {{{operation.messages.begin(), operation.messages.end()}}};
      case Collective::barrier:
        break;
    }
    // The bytes are arbitrary, and barriers may share them.
    char* all = barrier_bytes_.data();
    return all_to_all_transfer(size(), rank(), all, all + size(), 1);
  }

  MPI_Comm comm_;  ///< lives as long as MPI
  std::vector<char> barrier_bytes_;
};

/// On the thread of MPI: which node each rank is on.
Topology find_topology(int size) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "finding the ranks of a node");
  int leader = rank;
  check_mpi(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "finding the ranks of a node");
  std::vector<int> leaders(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, MPI_COMM_WORLD),
            "finding the ranks of a node");
  MPI_Comm_free(&node);
  return Topology::of_node_names(leaders);
}

}  // namespace

bool has_mpi() {
  return true;
}

std::unique_ptr<Communicator> make_mpi_communicator(double start_seconds) {
  struct World {
    int rank = 0;
    Topology topology;
    MPI_Comm comm = MPI_COMM_NULL;
  };
  mpi_thread().await_begin("starting MPI", start_seconds);
  const auto world = std::make_shared<World>();
  mpi_thread().run("finding the other ranks", start_seconds, [world] {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    world->topology = find_topology(size);
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world->comm),
              "duplicating the communicator of all ranks");
  });
  return std::make_unique<MpiCommunicator>(world->comm, std::move(world->topology), world->rank);
}

}  // namespace fp8train
