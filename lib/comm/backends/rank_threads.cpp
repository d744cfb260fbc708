// A collective is messages between all pairs of ranks, and the second end of a message that comes
// copies it, so that no rank has to wait for another to make progress.

#include "comm/backends/rank_threads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
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
  /// A message that has one end, or both.
  struct Letter {
    const Message* sent = nullptr;
    const Message* taken = nullptr;
    const Communicator::Operation* first = nullptr;  ///< of the end that came first
    bool complete() const { return sent != nullptr && taken != nullptr; }
  };
  /// Sender, receiver, whether it is of Collective::messages, its number or its collective's.
  using LetterKey = std::tuple<int, int, bool, uint64_t>;

  std::mutex mutex;
  std::condition_variable changed;
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

/// The messages of an operation to and from each other rank. Of a broadcast those of others than
/// the root have no bytes: with them ranks see that they call the same. Copies this rank's own
/// part.
std::vector<Message> messages_of(const Communicator::Operation& of, int size, int rank,
                                 bool moves) {
  std::vector<Message> messages(of.messages.begin(), of.messages.end());
  const bool is_broadcast = of.collective == Collective::broadcast;
  for (int peer = 0; peer < size && of.collective != Collective::messages; ++peer) {
    Message out = {.peer = peer, .sends = true, .number = of.sequence};
    Message in = {.peer = peer, .number = of.sequence};
    out.bytes = is_broadcast && rank != of.root ? 0 : of.bytes;
    in.bytes = is_broadcast && peer != of.root ? 0 : of.bytes;
    if (moves) {
      const size_t part = static_cast<size_t>(peer) * of.bytes;
      out.data = const_cast<void*>(
          offset_bytes(of.send, of.collective == Collective::all_to_all ? part : 0));
      in.data = offset_bytes(of.recv, is_broadcast ? 0 : part);
    }
    if (peer != rank) {
      messages.push_back(out);
      messages.push_back(in);
    } else if (moves) {
      copy_bytes(in.data, out.data, in.bytes);
    }
  }
  return messages;
}

/// One rank's part in an operation.
class ThreadWork final : public PendingWork, NotCopied {
 public:
  /// `world_ranks`: the numbers of the group's ranks in messages.
  ThreadWork(std::shared_ptr<ThreadGroup> group, const Communicator::Operation& operation,
             std::string words, int rank, WorldRanks world_ranks)
      : group_(std::move(group)),
        operation_(operation),
        words_(std::move(words)),
        rank_(rank),
        world_ranks_(std::move(world_ranks)) {}

  ~ThreadWork() override {
    const std::lock_guard<std::mutex> lock(group_->mutex);
    for (size_t i = 0; i < joined_; ++i) {
      const auto found = group_->letters.find(key_of(messages_[i]));
      if (found != group_->letters.end() && !found->second.complete()) {
        group_->letters.erase(found);
        group_->fail(
            fmt::format("rank {} has left {} before its end", world_ranks_[rank_], words_));
      }
    }
  }

  /// The second end of a message copies and forgets it.
  void join(int size, bool moves, double timeout) {
    timeout_ = timeout;
    const std::lock_guard<std::mutex> lock(group_->mutex);
    check_failure();
    messages_ = messages_of(operation_, size, rank_, moves);
    for (; joined_ < messages_.size(); ++joined_) {
      const Message& message = messages_[joined_];
      ThreadGroup::Letter& letter = group_->letters[key_of(message)];
      (message.sends ? letter.sent : letter.taken) = &message;
      if (!letter.complete()) {
        letter.first = &operation_;
        continue;
      }
      check_ends(letter, message);
      if (moves) {
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
      const std::string peers =  // words_ has those of messages
          operation_.collective == Collective::messages
              ? ""
              : fmt::format("; ranks that have not joined: {}", fmt::join(missing(), ", "));
      throw TimeoutError(fmt::format("rank {}: {} did not end in {} s{}", world_ranks_[rank_],
                                     words_, timeout_, peers));
    }
  }

 private:
  ThreadGroup::LetterKey key_of(const Message& message) const {
    return {message.sends ? rank_ : message.peer, message.sends ? message.peer : rank_,
            operation_.collective == Collective::messages, message.number};
  }
  bool is_open(const Message& message) const { return group_->letters.contains(key_of(message)); }
  bool over() {
    const bool all =
        std::ranges::none_of(messages_, [this](const Message& one) { return is_open(one); });
    if (!all) {
      check_failure();
    }
    return all;
  }
  std::set<int> missing() const {
    std::set<int> ranks;
    for (const Message& message : messages_) {
      if (is_open(message)) {
        ranks.insert(world_ranks_[message.peer]);
      }
    }
    return ranks;
  }
  /// Throws CommError where the ends of a letter, of which `message` came last, are not of one
  /// operation.
  void check_ends(const ThreadGroup::Letter& letter, const Message& message) {
    const Communicator::Operation& first = *letter.first;
    const int mine = world_ranks_[rank_];
    if (operation_.collective == Collective::messages) {
      if (letter.sent->bytes != letter.taken->bytes) {
        const int peer = world_ranks_[message.peer];
        group_->fail(fmt::format("message {}: rank {} sends {} bytes, rank {} receives {}",
                                 message.number, message.sends ? mine : peer, letter.sent->bytes,
                                 message.sends ? peer : mine, letter.taken->bytes));
      }
    } else if (first.collective != operation_.collective || first.bytes != operation_.bytes ||
               first.root != operation_.root) {
      group_->fail(fmt::format(
          "collective {}: rank {} calls {} of {} bytes where others call {} of {} bytes",
          operation_.sequence, mine, operation_.name(), operation_.bytes, first.name(),
          first.bytes));
    }
    check_failure();
  }
  void check_failure() {
    if (!group_->failure.empty()) {
      throw CommError(fmt::format("rank {}: {}: {}", world_ranks_[rank_], words_, group_->failure));
    }
  }

  std::shared_ptr<ThreadGroup> group_;
  Communicator::Operation operation_;
  std::string words_;
  int rank_;
  WorldRanks world_ranks_;
  double timeout_ = 0;
  std::vector<Message> messages_;
  size_t joined_ = 0;
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
    auto work =
        std::make_unique<ThreadWork>(group_, operation, words(operation), rank(), world_ranks());
    work->join(size(), moves, timeout());
    return Work(std::move(work));
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
