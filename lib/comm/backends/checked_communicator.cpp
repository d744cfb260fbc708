// Ranks that tell each other which collective they call, before they call it: one that calls
// another is named, where messages alone would hang, be cut off or be taken for others. What is
// compared goes over communicators of its own and is looked at when the collective is waited for,
// so that collectives overlap as they do without. Of a message the two ends tell each other.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/flight_recorder.h"
#include "comm/backends/backends.h"
#include "comm/majority.h"

namespace fp8train {
namespace {

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
  uint64_t hash() const { return content_hash(this, sizeof(Call)); }
};
static_assert(sizeof(Call) == 48);

/// Calls on their way between the ranks that have to agree.
struct Note {
  /// Throws CommError that names the ranks which differ. Owns the calls, which `works` move.
  std::function<void()> compare;
  std::vector<Work> works = {};

  bool done() {
    if (!std::ranges::all_of(works, [](Work& work) { return work.done(); })) {
      return false;
    }
    compare();
    return true;
  }
  void wait() {
    for (Work& work : works) {
      work.wait();
    }
    compare();
  }
};

/// `all`: of each rank, which make one call; `world`: the numbers of these ranks.
void compare_calls(const std::vector<Call>& all, int rank, const WorldRanks& world) {
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
    text +=
        fmt::format("; rank {} calls {}", world[other], all[static_cast<size_t>(other)].words());
  }
  throw CommError(fmt::format("rank {}: ranks call different collectives: this one {}{}",
                              world[rank], all[static_cast<size_t>(rank)].words(), text));
}

/// Both ends of a message.
struct MessageEnds {
  Call mine, theirs;
  int peer = 0;  ///< of all ranks
  bool sends = false;
};

void compare_ends(const std::vector<MessageEnds>& messages, int rank) {
  for (const MessageEnds& of : messages) {
    if (of.mine.hash() != of.theirs.hash()) {
      throw CommError(fmt::format(
          "rank {}: the ends of message {} differ: this one {} {} bytes in step {}; rank {} {} "
          "{} bytes in step {}",
          rank, of.mine.sequence, of.sends ? "sends" : "receives", of.mine.bytes, of.mine.step,
          of.peer, of.sends ? "receives" : "sends", of.theirs.bytes, of.theirs.step));
    }
  }
}

class CheckedWork final : public PendingWork {
 public:
  CheckedWork(Note note, Work work) : note_(std::move(note)), work_(std::move(work)) {}

  bool done() override { return note_.done() && work_.done(); }
  void wait() override {
    note_.wait();
    work_.wait();
  }

 private:
  Note note_;
  Work work_;
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
    share_timeout();
    const uint64_t colors =
        content_hash(group.color_of_rank.data(), group.color_of_rank.size_bytes());
    note(call("group", groups_++, colors, 0)).wait();
    return std::make_unique<CheckedCommunicator>(inner_->group(group.color_of_rank), counters());
  }
  const char* kind() const override { return "checked"; }

  Work start(const Operation& operation) override {
    share_timeout();
    Note noted = operation.collective == Collective::messages
                     ? note_messages(operation)
                     : note(call(operation.name(), operation.sequence, operation.bytes,
                                 static_cast<uint64_t>(operation.root)));
    try {
      Work work = inner_->run(operation);
      return Work(std::make_unique<CheckedWork>(std::move(noted), std::move(work)));
    } catch (const CommError&) {  // perhaps for that reason
      noted.wait();
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

  Note note(const Call& mine) {
    struct Data {
      Call mine;
      std::vector<Call> all;
    };
    const auto data =
        std::make_shared<Data>(Data{mine, std::vector<Call>(static_cast<size_t>(size()))});
    Note made = {
        [data, rank = rank(), world = world_ranks()] { compare_calls(data->all, rank, world); }};
    made.works.push_back(
        calls_->all_gather(host_stream(), &data->mine, data->all.data(), sizeof(Call)));
    return made;
  }

  /// A sender's note goes over one communicator and a receiver's over another, so that the nth to a
  /// peer is the nth from there.
  Note note_messages(const Operation& operation) {
    const auto data = std::make_shared<std::vector<MessageEnds>>(operation.messages.size());
    std::vector<Message> by_senders;
    std::vector<Message> by_receivers;
    for (size_t i = 0; i < data->size(); ++i) {
      const Message& message = operation.messages[i];
      MessageEnds& ends = (*data)[i];
      ends = {.mine = call("message", message.number, message.bytes, 0),
              .theirs = {},
              .peer = world_rank(message.peer),
              .sends = message.sends};
      Message note = {
          .peer = message.peer, .sends = true, .data = &ends.mine, .bytes = sizeof(Call)};
      (message.sends ? by_senders : by_receivers).push_back(note);
      note.sends = false;
      note.data = &ends.theirs;
      (message.sends ? by_receivers : by_senders).push_back(note);
    }
    Note made = {[data, rank = world_rank(rank())] { compare_ends(*data, rank); }};
    made.works.push_back(calls_->exchange(host_stream(), by_senders));
    made.works.push_back(receivers_->exchange(host_stream(), by_receivers));
    return made;
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
