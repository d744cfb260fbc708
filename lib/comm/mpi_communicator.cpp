// Ranks as processes of MPI, for host memory.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "comm/backends.h"
#include "comm/message_transport.h"
#include "comm/mpi_thread.h"

namespace fp8train {
namespace {

/// The numbers that the ranks of a communicator have among all ranks, for messages.
using WorldRanks = std::vector<int>;

class MpiWork final : public PendingWork {
 public:
  /// `rank`: this one, in the communicator.
  MpiWork(std::shared_ptr<PendingRequest> request, std::shared_ptr<const WorldRanks> world_ranks,
          int rank, double timeout)
      : request_(std::move(request)),
        world_ranks_(std::move(world_ranks)),
        who_(fmt::format("rank {}", world_ranks_->at(static_cast<size_t>(rank)))),
        timeout_(timeout) {}

  ~MpiWork() override {
    try {
      if (!request_->is_over(who_)) {
        MpiThread::instance().abandon(request_);
      }
    } catch (...) {  // a destructor must not throw; a request that has failed is over
      static_cast<void>(0);
    }
  }
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;

  bool done() override { return request_->is_over(who_); }

  void wait() override {
    if (request_->wait(timeout_, who_)) {
      return;
    }
    std::set<int> missing;
    for (const int peer : MpiThread::instance().unfinished_peers(request_)) {
      missing.insert(world_ranks_->at(static_cast<size_t>(peer)));
    }
    throw TimeoutError(fmt::format(
        "{}: {} did not end in {} s; ranks that have not answered: {}", who_, request_->name(),
        timeout_, missing.empty() ? "unknown" : fmt::format("{}", fmt::join(missing, ", "))));
  }

  double ended() override { return request_->ended_at(); }

 private:
  std::shared_ptr<PendingRequest> request_;
  std::shared_ptr<const WorldRanks> world_ranks_;
  std::string who_;
  double timeout_;
};

/// On the thread of MPI.
WorldRanks find_world_ranks(MPI_Comm comm) {
  const char* const what = "numbering the ranks of a communicator";
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm, &group), what);
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), what);
  int size = 0;
  check_mpi(MPI_Group_size(group, &size), what);
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  WorldRanks found(ranks.size());
  check_mpi(MPI_Group_translate_ranks(group, size, ranks.data(), world, found.data()), what);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return found;
}

class MpiTransport final : public MessageTransport {
 public:
  MpiTransport(MPI_Comm comm, int rank, WorldRanks world_ranks)
      : comm_(comm),
        rank_(rank),
        world_ranks_(std::make_shared<const WorldRanks>(std::move(world_ranks))) {}

  Work start(const char* name, uint64_t sequence, Transfer transfer, double timeout) override {
    auto request = std::make_shared<PendingRequest>(comm_, name, sequence, std::move(transfer));
    MpiThread::instance().start(request);
    return Work(std::make_unique<MpiWork>(request, world_ranks_, rank_, timeout));
  }

  std::unique_ptr<MessageTransport> split(int color, int rank, double timeout) override {
    struct Made {
      MPI_Comm comm = MPI_COMM_NULL;
      WorldRanks world_ranks;
    };
    const char* const what = "splitting a communicator";
    const auto made = std::make_shared<Made>();
    MpiThread::instance().run(what, timeout, [comm = comm_, color, rank, made, what] {
      check_mpi(MPI_Comm_split(comm, color, rank, &made->comm), what);
      made->world_ranks = find_world_ranks(made->comm);
    });
    return std::make_unique<MpiTransport>(made->comm, rank, std::move(made->world_ranks));
  }

  void fail(int exit_code) override { MpiThread::instance().abort_all(exit_code); }
  const char* kind() const override { return "mpi"; }

 private:
  MPI_Comm comm_;  ///< lives as long as MPI
  int rank_;
  std::shared_ptr<const WorldRanks> world_ranks_;
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
  return Topology::of_places(leaders);
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
    WorldRanks ranks;
  };
  MpiThread::instance().await_start(start_seconds);
  const auto world = std::make_shared<World>();
  MpiThread::instance().run("finding the other ranks", start_seconds, [world] {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    world->topology = find_topology(size);
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world->comm),
              "duplicating the communicator of all ranks");
    world->ranks = find_world_ranks(world->comm);
  });
  return make_message_communicator(
      std::make_unique<MpiTransport>(world->comm, world->rank, std::move(world->ranks)),
      std::move(world->topology), world->rank);
}

}  // namespace fp8train
