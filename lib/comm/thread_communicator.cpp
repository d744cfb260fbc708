// Ranks as threads of one process. The last rank that joins a collective copies for all, so that
// no rank has to wait for another to make progress.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "comm/backends.h"
#include "comm/host_copy.h"
#include "comm/patient_wait.h"

namespace fp8train {
namespace {

/// Ranks that talk, and their collectives that are not over. All members are guarded by `mutex`.
struct Group {
  struct Member {
    bool joined = false;
    const void* send = nullptr;
    void* recv = nullptr;
  };
  struct Collective {
    const char* name = "";
    size_t bytes = 0;
    int root = 0;
    bool moves = false;
    std::vector<Member> members;
    int joined = 0, left = 0;
    bool complete() const { return joined == static_cast<int>(members.size()); }
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Collective> collectives;  ///< by sequence
  std::string failure;                         ///< empty: none

  void fail(const std::string& why) {
    failure = failure.empty() ? why : failure;
    changed.notify_all();
  }
};

/// All groups of the ranks of make_thread_ranks.
struct World {
  /// Which group: the one it is made from, 'd'uplicate, 'n'ode or 'p'eers, which of them, how often
  /// made before.
  using Key = std::tuple<const Group*, char, int, int>;

  std::mutex mutex;
  std::map<Key, std::shared_ptr<Group>> groups;
  std::string failure;

  std::shared_ptr<Group> group(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<Group>& found = groups[key];
    if (found == nullptr) {
      found = std::make_shared<Group>();
      found->failure = failure;
    }
    return found;
  }

  void fail(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex);
    failure = why;
    for (auto& [key, group] : groups) {
      const std::lock_guard<std::mutex> group_lock(group->mutex);
      group->fail(why);
    }
  }
};

void copy_all(const Group::Collective& collective) {
  const size_t bytes = collective.bytes;
  const std::string_view name = collective.name;
  const auto& members = collective.members;
  if (name == "broadcast") {
    for (const Group::Member& to : members) {
      copy_bytes(to.recv, members[static_cast<size_t>(collective.root)].send, bytes);
    }
    return;
  }
  for (size_t to = 0; to < members.size(); ++to) {
    for (size_t from = 0; from < members.size(); ++from) {
      const void* part =
          name == "all_to_all" ? offset_bytes(members[from].send, to * bytes) : members[from].send;
      copy_bytes(offset_bytes(members[to].recv, from * bytes), part, bytes);
    }
  }
}

/// One rank's part in a collective.
class ThreadWork final : public PendingWork {
 public:
  ThreadWork(std::shared_ptr<Group> group, uint64_t sequence, int rank, double timeout)
      : group_(std::move(group)), sequence_(sequence), rank_(rank), timeout_(timeout) {}

  ~ThreadWork() override {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    Group::Collective& mine = collective();
    if (!mine.complete()) {  // its buffers may be gone when the others come
      group_->fail(fmt::format("rank {} has left {} before its end", rank_, mine.name));
    }
    if (++mine.left == static_cast<int>(mine.members.size())) {
      group_->collectives.erase(sequence_);
    }
  }
  ThreadWork(const ThreadWork&) = delete;
  ThreadWork& operator=(const ThreadWork&) = delete;

  bool done() override {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    return over();
  }

  void wait() override {
    std::unique_lock<std::mutex> lock(group_->mutex);
    if (!patient_wait(group_->changed, lock, timeout_, [this] { return over(); })) {
      throw TimeoutError(
          fmt::format("rank {}: {} did not end in {} s; ranks that have not joined: {}", rank_,
                      collective().name, timeout_, fmt::join(missing(), ", ")));
    }
  }

 private:
  Group::Collective& collective() { return group_->collectives.at(sequence_); }

  bool over() {
    if (collective().complete()) {
      return true;
    }
    if (!group_->failure.empty()) {
      throw CommError(fmt::format("rank {}: {}: {}", rank_, collective().name, group_->failure));
    }
    return false;
  }

  std::vector<int> missing() {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < collective().members.size(); ++rank) {
      if (!collective().members[rank].joined) {
        ranks.push_back(static_cast<int>(rank));
      }
    }
    return ranks;
  }

  std::shared_ptr<Group> group_;
  uint64_t sequence_;
  int rank_;
  double timeout_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, Topology topology,
                     int rank, std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(std::move(topology), rank, std::move(traffic)),
        world_(std::move(world)),
        group_(std::move(group)) {}

  std::unique_ptr<Communicator> duplicate() override {
    return subgroup('d', 0, topology(), rank(), duplicates_++);
  }
  std::unique_ptr<Communicator> node_group() override {
    return subgroup('n', node(), Topology::blocks(local_size(), local_size()), local_rank(),
                    node_groups_++);
  }
  std::unique_ptr<Communicator> peer_group() override {
    check(topology().ranks_per_node() > 0, "peers need nodes of equally many ranks");
    return subgroup('p', local_rank(), Topology::blocks(nodes(), 1), node(), peer_groups_++);
  }
  void fail(int exit_code) override {
    world_->fail(fmt::format("rank {} has given up with exit code {}", rank(), exit_code));
  }

 protected:
  Work start_all_gather(const Operation& operation) override { return join(operation); }
  Work start_all_to_all(const Operation& operation) override { return join(operation); }
  Work start_broadcast(const Operation& operation) override { return join(operation); }
  Work start_barrier(const Operation& operation) override { return join(operation); }
  const char* kind() const override { return "threads"; }

 private:
  std::unique_ptr<Communicator> subgroup(char which, int color, Topology topology, int rank,
                                         int made_before) {
    auto made = std::make_unique<ThreadCommunicator>(
        world_, world_->group({group_.get(), which, color, made_before}), std::move(topology), rank,
        counters());
    made->set_timeout(timeout());
    return made;
  }

  Work join(const Operation& operation) {
    const bool moves = moves_bytes(operation.stream, kind(), operation.name);
    const std::lock_guard<std::mutex> lock(group_->mutex);
    if (!group_->failure.empty()) {
      throw CommError(fmt::format("rank {}: {}: {}", rank(), operation.name, group_->failure));
    }
    Group::Collective& mine = group_->collectives[operation.sequence];
    if (mine.members.empty()) {
      mine = {.name = operation.name,
              .bytes = operation.bytes,
              .root = operation.root,
              .moves = moves,
              .members = std::vector<Group::Member>(static_cast<size_t>(size()))};
    }
    if (std::string_view(mine.name) != operation.name || mine.bytes != operation.bytes ||
        mine.root != operation.root) {
      group_->fail(fmt::format(
          "collective {}: rank {} calls {} of {} bytes where others call {} of {} bytes",
          operation.sequence, rank(), operation.name, operation.bytes, mine.name, mine.bytes));
      throw CommError(group_->failure);
    }
    mine.members[static_cast<size_t>(rank())] = {true, operation.send, operation.recv};
    if (++mine.joined == size()) {
      if (mine.moves) {
        copy_all(mine);
      }
      group_->changed.notify_all();
    }
    return Work(std::make_unique<ThreadWork>(group_, operation.sequence, rank(), timeout()));
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<Group> group_;
  int duplicates_ = 0, node_groups_ = 0, peer_groups_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(const Topology& topology) {
  const auto world = std::make_shared<World>();
  const std::shared_ptr<Group> all = world->group({nullptr, 'w', 0, 0});
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < topology.size(); ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(world, all, topology, rank));
  }
  return ranks;
}

}  // namespace fp8train
