// Ranks that tell each other which collective they call, before they call it: one that calls
// another is named, where messages alone would hang, be cut off or be taken for others. What is
// compared goes over a communicator of its own and is looked at when the collective is waited for,
// so that collectives overlap as they do without.

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "comm/backends.h"
#include "comm/majority.h"

namespace fp8train {
namespace {

/// A call of a collective. Words only: it is compared by its bytes.
struct Call {
  std::array<char, 16> name = {};
  uint64_t step = 0;  ///< of the run, where it is recorded
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  uint64_t root = 0;

  std::string words() const {
    return fmt::format("{} {} of {} bytes, root {}, in step {}", name.data(), sequence, bytes, root,
                       step);
  }
  uint64_t hash() const {  // FNV-1a
    uint64_t value = 0xcbf2'9ce4'8422'2325;
    for (const char byte : std::string_view(reinterpret_cast<const char*>(this), sizeof(Call))) {
      value = (value ^ static_cast<unsigned char>(byte)) * 0x100'0000'01b3;
    }
    return value;
  }
};
static_assert(sizeof(Call) == 48);

struct Calls {
  Call mine;
  std::vector<Call> all;
  int rank = 0;

  void compare() const {
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
      text += fmt::format("; rank {} calls {}", other, all[static_cast<size_t>(other)].words());
    }
    throw CommError(fmt::format("rank {}: ranks call different collectives: this one {}{}", rank,
                                mine.words(), text));
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

class CheckedCommunicator final : public Communicator {
 public:
  explicit CheckedCommunicator(std::unique_ptr<Communicator> inner,
                               std::shared_ptr<Traffic> traffic = nullptr)
      : Communicator(inner->topology(), inner->rank(), std::move(traffic)),
        inner_(std::move(inner)),
        calls_(inner_->duplicate()) {
    set_timeout(inner_->timeout());
  }

  std::unique_ptr<Communicator> duplicate() override { return group(inner_->duplicate()); }
  std::unique_ptr<Communicator> node_group() override { return group(inner_->node_group()); }
  std::unique_ptr<Communicator> peer_group() override { return group(inner_->peer_group()); }
  bool in_stream_order() const override { return inner_->in_stream_order(); }
  void fail(int exit_code) override { inner_->fail(exit_code); }

 protected:
  Work start_all_gather(const Operation& operation) override {
    return checked(operation, [&] {
      return inner_->all_gather(operation.stream, operation.send, operation.recv, operation.bytes);
    });
  }
  Work start_all_to_all(const Operation& operation) override {
    return checked(operation, [&] {
      return inner_->all_to_all(operation.stream, operation.send, operation.recv, operation.bytes);
    });
  }
  Work start_broadcast(const Operation& operation) override {
    return checked(operation, [&] {
      return inner_->broadcast(operation.stream, operation.recv, operation.bytes, operation.root);
    });
  }
  Work start_barrier(const Operation& operation) override {
    return checked(operation, [&] { return inner_->barrier(); });
  }
  const char* kind() const override { return "checked"; }

 private:
  std::unique_ptr<Communicator> group(std::unique_ptr<Communicator> inner) {
    return std::make_unique<CheckedCommunicator>(std::move(inner), counters());
  }

  template <typename Start>
  Work checked(const Operation& operation, const Start& start) {
    inner_->set_timeout(timeout());
    calls_->set_timeout(timeout());
    auto calls = std::make_unique<Calls>();
    const FlightRecorder* const recorder = flight_recorder();
    calls->mine = {.step = recorder == nullptr ? 0 : recorder->step(),
                   .sequence = operation.sequence,
                   .bytes = operation.bytes,
                   .root = static_cast<uint64_t>(operation.root)};
    std::strncpy(calls->mine.name.data(), operation.name, calls->mine.name.size() - 1);
    calls->all.resize(static_cast<size_t>(size()));
    calls->rank = rank();
    Work noted =
        calls_->all_gather(host_stream(), &calls->mine, calls->all.data(), sizeof(calls->mine));
    try {
      Work work = start();
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

  std::unique_ptr<Communicator> inner_, calls_;
};

}  // namespace

std::unique_ptr<Communicator> make_checked_communicator(std::unique_ptr<Communicator> inner) {
  return std::make_unique<CheckedCommunicator>(std::move(inner));
}

}  // namespace fp8train
