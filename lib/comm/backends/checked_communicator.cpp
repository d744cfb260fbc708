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
#include "comm/backends/backends.h"
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

  bool in_stream_order() const override { return inner_->in_stream_order(); }
  void fail(int exit_code) override { inner_->fail(exit_code); }

 protected:
  std::unique_ptr<Communicator> make_group(const Subgroup& group) override {
    return std::make_unique<CheckedCommunicator>(inner_->group(group.kind), counters());
  }
  const char* kind() const override { return "checked"; }

  Work start(const Operation& operation) override {
    inner_->set_timeout(timeout());
    calls_->set_timeout(timeout());
    auto calls = std::make_unique<Calls>();
    const FlightRecorder* const recorder = flight_recorder();
    calls->mine = {.step = recorder == nullptr ? 0 : recorder->step(),
                   .sequence = operation.sequence,
                   .bytes = operation.bytes,
                   .root = static_cast<uint64_t>(operation.root)};
    std::strncpy(calls->mine.name.data(), operation.name(), calls->mine.name.size() - 1);
    calls->all.resize(static_cast<size_t>(size()));
    calls->rank = rank();
    Work noted =
        calls_->all_gather(host_stream(), &calls->mine, calls->all.data(), sizeof(calls->mine));
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
  std::unique_ptr<Communicator> inner_, calls_;
};

}  // namespace

std::unique_ptr<Communicator> make_checked_communicator(std::unique_ptr<Communicator> inner) {
  return std::make_unique<CheckedCommunicator>(std::move(inner));
}

}  // namespace fp8train
