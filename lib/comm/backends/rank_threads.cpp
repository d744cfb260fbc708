// The last rank that joins a collective copies for all, so that no rank has to wait for another to
// make progress.

#include "comm/backends/rank_threads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/not_copied.h"
#include "comm/backends/host_copy.h"
#include "comm/backends/patient_wait.h"

namespace fp8train {
namespace {

/// Ranks that talk, and their collectives that are not over. All members are guarded by `mutex`.
struct ThreadGroup {
  struct Member {
    bool joined = false;
    const void* send = nullptr;
    void* recv = nullptr;
  };
  struct Call {
    Collective collective = Collective::barrier;
    size_t bytes = 0;
    int root = 0;
    bool moves = false;
    std::vector<Member> members;
    int joined = 0, left = 0;
    bool complete() const { return joined == static_cast<int>(members.size()); }
  };
  /// A message that has one end, or both.
  struct Letter {
    const Message* sent = nullptr;
    const Message* taken = nullptr;
    bool complete() const { return sent != nullptr && taken != nullptr; }
  };
  /// Sender, receiver and number.
  using LetterKey = std::tuple<int, int, uint64_t>;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Call> calls;  ///< by sequence
  std::map<LetterKey, Letter> letters;
  std::string failure;  ///< empty: none

  void fail(const std::string& why) {
    failure = failure.empty() ? why : failure;
    changed.notify_all();
  }
};

/// All groups of the ranks of make_ranks().
struct ThreadWorld {
  /// Which group: the one it is made from, how many of that were made before, its color.
  using Key = std::tuple<const ThreadGroup*, int, int>;

  std::mutex mutex;
  std::map<Key, std::shared_ptr<ThreadGroup>> groups;
  std::string failure;

  std::shared_ptr<ThreadGroup> group(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<ThreadGroup>& found = groups[key];
    if (found == nullptr) {
      found = std::make_shared<ThreadGroup>();
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

void copy_all(const ThreadGroup::Call& call) {
  const size_t bytes = call.bytes;
  const auto& members = call.members;
  if (call.collective == Collective::broadcast) {
    for (const ThreadGroup::Member& to : members) {
      copy_bytes(to.recv, members[static_cast<size_t>(call.root)].send, bytes);
    }
    return;
  }
  for (size_t to = 0; to < members.size(); ++to) {
    for (size_t from = 0; from < members.size(); ++from) {
      const void* part = call.collective == Collective::all_to_all
                             ? offset_bytes(members[from].send, to * bytes)
                             : members[from].send;
      copy_bytes(offset_bytes(members[to].recv, from * bytes), part, bytes);
    }
  }
}

/// One rank's messages of a call.
class ThreadMessages final : public PendingWork, NotCopied {
 public:
  ThreadMessages(std::shared_ptr<ThreadGroup> group, const Communicator::Operation& operation,
                 std::string words, int rank, int world_rank, double timeout)
      : group_(std::move(group)),
        messages_(operation.messages.begin(), operation.messages.end()),
        moves_(operation.stream.kind() == DeviceKind::cpu),
        words_(std::move(words)),
        rank_(rank),
        world_rank_(world_rank),
        timeout_(timeout) {}

  ~ThreadMessages() override {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    for (size_t i = 0; i < joined_; ++i) {
      const auto found = group_->letters.find(key_of(messages_[i]));
      if (found != group_->letters.end() && !found->second.complete()) {
        group_->letters.erase(found);
        group_->fail(fmt::format("rank {} has left {} before its end", world_rank_, words_));
      }
    }
  }

  /// The second end of a message copies and forgets it. `world_rank`: of a peer.
  void join(const std::function<int(int)>& world_rank) {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    check_failure();
    for (; joined_ < messages_.size(); ++joined_) {
      const Message& message = messages_[joined_];
      ThreadGroup::Letter& letter = group_->letters[key_of(message)];
      (message.sends ? letter.sent : letter.taken) = &message;
      if (!letter.complete()) {
        continue;
      }
      if (letter.sent->bytes != letter.taken->bytes) {
        const int peer = world_rank(message.peer);
        group_->fail(fmt::format("message {}: rank {} sends {} bytes, rank {} receives {}",
                                 message.number, message.sends ? world_rank_ : peer,
                                 letter.sent->bytes, message.sends ? peer : world_rank_,
                                 letter.taken->bytes));
        check_failure();
      }
      if (moves_) {
        copy_bytes(letter.taken->data, letter.sent->data, letter.sent->bytes);
      }
      group_->letters.erase(key_of(message));
    }
    group_->changed.notify_all();
  }

  bool done() override {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    return over();
  }
  void wait() override {
    std::unique_lock<std::mutex> lock(group_->mutex);
    if (!patient_wait(group_->changed, lock, timeout_, [this] { return over(); })) {
      throw TimeoutError(
          fmt::format("rank {}: {} did not end in {} s", world_rank_, words_, timeout_));
    }
  }

 private:
  ThreadGroup::LetterKey key_of(const Message& message) const {
    return {message.sends ? rank_ : message.peer, message.sends ? message.peer : rank_,
            message.number};
  }
  bool over() {
    const bool all = std::all_of(messages_.begin(), messages_.end(), [this](const Message& one) {
      return group_->letters.find(key_of(one)) == group_->letters.end();
    });
    if (!all) {
      check_failure();
    }
    return all;
  }
  void check_failure() {
    if (!group_->failure.empty()) {
      throw CommError(fmt::format("rank {}: {}: {}", world_rank_, words_, group_->failure));
    }
  }

  std::shared_ptr<ThreadGroup> group_;
  std::vector<Message> messages_;
  bool moves_;
  std::string words_;
  int rank_, world_rank_;
  double timeout_;
  size_t joined_ = 0;
};

/// One rank's part in a collective.
class ThreadWork final : public PendingWork, NotCopied {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, uint64_t sequence, int rank, double timeout)
      : group_(std::move(group)), sequence_(sequence), rank_(rank), timeout_(timeout) {}

  ~ThreadWork() override {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    ThreadGroup::Call& mine = call();
    if (!mine.complete()) {  // its buffers may be gone when the others come
      group_->fail(
          fmt::format("rank {} has left {} before its end", rank_, name_of(mine.collective)));
    }
    if (++mine.left == static_cast<int>(mine.members.size())) {
      group_->calls.erase(sequence_);
    }
  }

  bool done() override {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    return over();
  }

  void wait() override {
    std::unique_lock<std::mutex> lock(group_->mutex);
    if (!patient_wait(group_->changed, lock, timeout_, [this] { return over(); })) {
      throw TimeoutError(
          fmt::format("rank {}: {} did not end in {} s; ranks that have not joined: {}", rank_,
                      name_of(call().collective), timeout_, fmt::join(missing(), ", ")));
    }
  }

 private:
  ThreadGroup::Call& call() { return group_->calls.at(sequence_); }

  bool over() {
    if (call().complete()) {
      return true;
    }
    if (!group_->failure.empty()) {
      throw CommError(
          fmt::format("rank {}: {}: {}", rank_, name_of(call().collective), group_->failure));
    }
    return false;
  }

  std::vector<int> missing() {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < call().members.size(); ++rank) {
      if (!call().members[rank].joined) {
        ranks.push_back(static_cast<int>(rank));
      }
    }
    return ranks;
  }

  std::shared_ptr<ThreadGroup> group_;
  uint64_t sequence_;
  int rank_;
  double timeout_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadGroup> group,
                     Topology topology, int rank, std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(std::move(topology), rank, std::move(traffic)),
        world_(std::move(world)),
        group_(std::move(group)) {}

  void fail(int exit_code) override {
    world_->fail(fmt::format("rank {} has given up with exit code {}", rank(), exit_code));
  }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    return std::make_unique<ThreadCommunicator>(
        world_, world_->group({group_.get(), groups_made_++, group.color}), group.topology,
        group.rank, counters());
  }
  const char* kind() const override { return "threads"; }

  Work start(const Operation& operation) override {
    const bool moves = moves_bytes(operation.stream, kind(), operation.name());
    if (operation.collective == Collective::messages) {
      auto messages = std::make_unique<ThreadMessages>(group_, operation, words(operation), rank(),
                                                       world_rank(rank()), timeout());
      messages->join([this](int peer) { return world_rank(peer); });
      return Work(std::move(messages));
    }
    const std::lock_guard<std::mutex> lock(group_->mutex);
    if (!group_->failure.empty()) {
      throw CommError(fmt::format("rank {}: {}: {}", rank(), operation.name(), group_->failure));
    }
    ThreadGroup::Call& mine = group_->calls[operation.sequence];
    if (mine.members.empty()) {
      mine = {.collective = operation.collective,
              .bytes = operation.bytes,
              .root = operation.root,
              .moves = moves,
              .members = std::vector<ThreadGroup::Member>(static_cast<size_t>(size()))};
    }
    if (mine.collective != operation.collective || mine.bytes != operation.bytes ||
        mine.root != operation.root) {
      group_->fail(fmt::format(
          "collective {}: rank {} calls {} of {} bytes where others call {} of {} bytes",
          operation.sequence, rank(), operation.name(), operation.bytes, name_of(mine.collective),
          mine.bytes));
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

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadGroup> group_;
  int groups_made_ = 0;
};

std::vector<std::unique_ptr<Communicator>> make_ranks(const Topology& topology) {
  const auto world = std::make_shared<ThreadWorld>();
  const std::shared_ptr<ThreadGroup> all = world->group({nullptr, 0, 0});
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < topology.size(); ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(world, all, topology, rank));
  }
  return ranks;
}

}  // namespace

std::vector<std::exception_ptr> run_rank_threads(const Topology& topology,
                                                 const std::function<void(Communicator&)>& body,
                                                 double timeout) {
  const auto ranks = make_ranks(topology);
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ranks[rank]->set_timeout(timeout);
        body(*ranks[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
        ranks[rank]->fail(1);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

}  // namespace fp8train
