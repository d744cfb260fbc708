// Ranks that tell each other which collective they call, before they call it: one that calls
// another is named, where messages alone would hang, be cut off or be taken for others. What is
// compared goes over communicators of its own and is looked at when the collective is waited for,
// so that collectives overlap as they do without. Of a message the two ends tell each other.

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "comm/backends/backends.h"
#include "comm/majority.h"

namespace fp8train {
namespace {

/// FNV-1a
uint64_t hash_of(const void* data, size_t bytes) {
  uint64_t value = 0xcbf2'9ce4'8422'2325;
  for (const char byte : std::string_view(static_cast<const char*>(data), bytes)) {
    value = (value ^ static_cast<unsigned char>(byte)) * 0x100'0000'01b3;
  }
  return value;
}

/// A call of a collective, or one message of a call. Words only: it is compared by its bytes.
struct Call {
  std::array<char, 16> name = {};
  uint64_t step = 0;  ///< of the run, where it is recorded
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  uint64_t root = 0;

  std::string words() const {
    if (std::string_view(name.data()) == "group") {
      return fmt::format("group {} of the colors {:x}, in step {}", sequence, bytes, step);
    }
    return fmt::format("{} {} of {} bytes, root {}, in step {}", name.data(), sequence, bytes, root,
                       step);
  }
  uint64_t hash() const { return hash_of(this, sizeof(Call)); }
};
static_assert(sizeof(Call) == 48);

/// The calls of this rank and of those that it has to agree with.
struct Calls {
  virtual ~Calls() = default;
  /// Throws CommError that names the ranks which differ.
  virtual void compare() const = 0;
};

/// One call of all ranks.
struct CollectiveCalls final : Calls {
  Call mine;
  std::vector<Call> all;
  int rank = 0;
  WorldRanks world_ranks;

  void compare() const override {
    std::vector<uint64_t> hashes;
    hashes.reserve(all.size());
    for (const Call& call : all) {
      hashes.push_back(call.hash());
    }
    if (!any_differ(hashes)) {
      return;
    }
    std::string text;
    for (const int other : ranks_that_differ(hashes)) {
      text += fmt::format("; rank {} calls {}", world_ranks[other],
                          all[static_cast<size_t>(other)].words());
    }
    throw CommError(fmt::format("rank {}: ranks call different collectives: this one {}{}",
                                world_ranks[rank], mine.words(), text));
  }
};

/// Both ends of messages.
struct MessageCalls final : Calls {
  struct End {
    Call mine, theirs;
    int peer = 0;  ///< of all ranks
    bool sends = false;
  };
  std::vector<End> ends;
  int rank = 0;

  void compare() const override {
    for (const End& end : ends) {
      if (end.mine.hash() != end.theirs.hash()) {
        throw CommError(fmt::format(
            "rank {}: the ends of message {} differ: this one {} {} bytes in step {}; rank {} {} "
            "{} bytes in step {}",
            rank, end.mine.sequence, end.sends ? "sends" : "receives", end.mine.bytes,
            end.mine.step, end.peer, end.sends ? "receives" : "sends", end.theirs.bytes,
            end.theirs.step));
      }
    }
  }
};

class CheckedWork final : public PendingWork {
 public:
  CheckedWork(std::unique_ptr<Calls> calls, Work noted, Work work)
      : calls_(std::move(calls)), noted_(std::move(noted)), work_(std::move(work)) {}

  bool done() override {
    if (!noted_.done()) {
      return false;
    }
    calls_->compare();
    return work_.done();
  }
  void wait() override {
    noted_.wait();
    calls_->compare();
    work_.wait();
  }

 private:
  std::unique_ptr<Calls> calls_;
  Work noted_, work_;
};

class BothWorks final : public PendingWork {
 public:
  BothWorks(Work first, Work second) : first_(std::move(first)), second_(std::move(second)) {}
  bool done() override { return first_.done() && second_.done(); }
  void wait() override {
    first_.wait();
    second_.wait();
  }

 private:
  Work first_, second_;
};

class CheckedCommunicator final : public Communicator {
 public:
  explicit CheckedCommunicator(std::unique_ptr<Communicator> inner,
                               std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(inner.get(), std::move(traffic)),
        inner_(std::move(inner)),
        calls_(inner_->duplicate()),
        receivers_(inner_->duplicate()) {}

  bool in_stream_order() const override { return inner_->in_stream_order(); }
  void fail(int exit_code) override { inner_->fail(exit_code); }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    std::unique_ptr<Calls> calls;
    share_timeout();
    const uint64_t colors = hash_of(group.color_of_rank.data(), group.color_of_rank.size_bytes());
    note(calls, call("group", groups_++, colors, 0)).wait();
    calls->compare();
    return std::make_unique<CheckedCommunicator>(inner_->group(group.color_of_rank), counters());
  }
  const char* kind() const override { return "checked"; }

  Work start(const Operation& operation) override {
    share_timeout();
    std::unique_ptr<Calls> calls;
    Work noted = operation.collective == Collective::messages
                     ? note_messages(calls, operation)
                     : note(calls, call(operation.name(), operation.sequence, operation.bytes,
                                        static_cast<uint64_t>(operation.root)));
    try {
      Work work = inner_->run(operation);
      return Work(
          std::make_unique<CheckedWork>(std::move(calls), std::move(noted), std::move(work)));
    } catch (const CommError&) {  // perhaps for that reason
      if (calls != nullptr) {
        noted.wait();
        calls->compare();
      }
      throw;
    }
  }

 private:
  void share_timeout() {
    for (Communicator* const one : {inner_.get(), calls_.get(), receivers_.get()}) {
      one->set_timeout(timeout());
    }
  }

  static Call call(const char* name, uint64_t sequence, uint64_t bytes, uint64_t root) {
    const FlightRecorder* const recorder = flight_recorder();
    Call made = {.step = recorder == nullptr ? 0 : recorder->step(),
                 .sequence = sequence,
                 .bytes = bytes,
                 .root = root};
    std::strncpy(made.name.data(), name, made.name.size() - 1);
    return made;
  }

  Work note(std::unique_ptr<Calls>& calls, const Call& mine) {
    auto made = std::make_unique<CollectiveCalls>();
    made->mine = mine;
    made->all.resize(static_cast<size_t>(size()));
    made->rank = rank();
    made->world_ranks = world_ranks();
    Work noted = calls_->all_gather(host_stream(), &made->mine, made->all.data(), sizeof(Call));
    calls = std::move(made);
    return noted;
  }

  /// A sender's note goes over one communicator and a receiver's over another, so that the nth to a
  /// peer is the nth from there.
  Work note_messages(std::unique_ptr<Calls>& calls, const Operation& operation) {
    auto made = std::make_unique<MessageCalls>();
    made->rank = world_rank(rank());
    made->ends.resize(operation.messages.size());
    std::vector<Message> by_senders;
    std::vector<Message> by_receivers;
    for (size_t i = 0; i < made->ends.size(); ++i) {
      const Message& message = operation.messages[i];
      MessageCalls::End& end = made->ends[i];
      end = {.mine = call("message", message.number, message.bytes, 0),
             .theirs = {},
             .peer = world_rank(message.peer),
             .sends = message.sends};
      Message note = {
          .peer = message.peer, .sends = true, .data = &end.mine, .bytes = sizeof(Call)};
      (message.sends ? by_senders : by_receivers).push_back(note);
      note.sends = false;
      note.data = &end.theirs;
      (message.sends ? by_receivers : by_senders).push_back(note);
    }
    calls = std::move(made);
    return Work(std::make_unique<BothWorks>(calls_->exchange(host_stream(), by_senders),
                                            receivers_->exchange(host_stream(), by_receivers)));
  }

  std::unique_ptr<Communicator> inner_;
  std::unique_ptr<Communicator> calls_, receivers_;  ///< for notes; the second of receivers
  uint64_t groups_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_checked_communicator(std::unique_ptr<Communicator> inner) {
  return std::make_unique<CheckedCommunicator>(std::move(inner));
}

}  // namespace fp8train
