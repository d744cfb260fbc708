#include "comm/backends/nccl_group.h"

#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/not_copied.h"
#include "comm/backends/host_copy.h"
#include "comm/backends/nccl_library.h"
#include "device/cuda/cuda_device.h"

namespace fp8train {
namespace {

constexpr double kFinalizeTimeoutSeconds = 30;  // for others to end as well
constexpr auto kTeardown = std::chrono::seconds(10);
constexpr auto kLockTimeout = std::chrono::seconds(5);  // for a call of NCCL by another thread

template <typename Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(nccl_function(name));
}
// It declares a member of that name. NOLINTBEGIN(bugprone-macro-parentheses)
#define FP8TRAIN_NCCL_FUNCTION(name) \
  decltype(&::nccl##name) name = find<decltype(&::nccl##name)>("nccl" #name)
// NOLINTEND(bugprone-macro-parentheses)

struct NcclApi {
  FP8TRAIN_NCCL_FUNCTION(GetUniqueId);
  FP8TRAIN_NCCL_FUNCTION(CommInitRankConfig);
  FP8TRAIN_NCCL_FUNCTION(CommSplit);
  FP8TRAIN_NCCL_FUNCTION(CommFinalize);
  FP8TRAIN_NCCL_FUNCTION(CommDestroy);
  FP8TRAIN_NCCL_FUNCTION(CommAbort);
  FP8TRAIN_NCCL_FUNCTION(CommGetAsyncError);
  FP8TRAIN_NCCL_FUNCTION(GetErrorString);
  FP8TRAIN_NCCL_FUNCTION(GetLastError);
  FP8TRAIN_NCCL_FUNCTION(AllGather);
  FP8TRAIN_NCCL_FUNCTION(Broadcast);
  FP8TRAIN_NCCL_FUNCTION(Send);
  FP8TRAIN_NCCL_FUNCTION(Recv);
  FP8TRAIN_NCCL_FUNCTION(GroupStart);
  FP8TRAIN_NCCL_FUNCTION(GroupEnd);
};
#undef FP8TRAIN_NCCL_FUNCTION

const NcclApi& nccl() {
  static const NcclApi api;
  return api;
}

bool is_error(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

std::string nccl_words(ncclResult_t result, ncclComm_t comm) {
  const char* more = nccl().GetLastError(comm);
  return more == nullptr || *more == 0
             ? nccl().GetErrorString(result)
             : fmt::format("{} ({})", nccl().GetErrorString(result), more);
}

/// Runs `job`, which may hang, on a thread that is left behind if it does.
void run_bounded(std::function<void()> job) {
  std::packaged_task<void()> task(std::move(job));
  const std::future<void> ended = task.get_future();
  std::thread thread(std::move(task));
  if (ended.wait_for(kTeardown) == std::future_status::ready) {
    thread.join();
  } else {
    thread.detach();
  }
}

/// All communicators of NCCL that a rank has made from one, which fail together.
class Family final : public NcclFamily, NotCopied {
 public:
  Family(Device& device, int rank)
      : NcclFamily(device, rank),
        watchdog_([this] { return failure(); }, [this] { abort_all(); }) {}
  ~Family() override = default;

  Watchdog& watchdog() override { return watchdog_; }

  /// A slot for a communicator that `make` writes to, now or before it is ready.
  using Slot = std::list<ncclComm_t>::iterator;
  template <typename Make>
  Slot open(const std::string& what, double timeout, ncclComm_t parent, const Make& make) {
    const Slot slot = call(what, parent, [&](std::list<ncclComm_t>& comms) {
      ncclComm_t& made = comms.emplace_back(nullptr);
      return std::pair(make(&made), std::prev(comms.end()));
    });
    if (parent != nullptr) {
      await(what, parent, timeout);
    }
    await(what, *slot, timeout);
    return slot;
  }

  /// Starts an operation and returns when it is in the stream.
  template <typename Start>
  void launch(const std::string& what, ncclComm_t comm, double timeout, const Start& start) {
    call(what, comm, [&](std::list<ncclComm_t>& comms) { return std::pair(start(), comms.end()); });
    await(what, comm, timeout);
  }

  void close(Slot slot) noexcept;

 private:
  /// A call of NCCL, after which the communicator may be in progress.
  template <typename Call>
  Slot call(const std::string& what, ncclComm_t comm, const Call& job) {
    watchdog_.check(what);
    std::unique_lock<std::timed_mutex> lock(mutex_);
    if (aborted_) {
      lock.unlock();
      watchdog_.check(what);
    }
    const auto [result, slot] = job(comms_);
    if (is_error(result)) {
      const std::string why = fmt::format("{}: {}", what, nccl_words(result, comm));
      lock.unlock();
      watchdog_.fail(why);
      throw CommError(why);
    }
    return slot;
  }

  void await(const std::string& what, ncclComm_t comm, double timeout);
  std::string failure();
  void abort_all();

  std::timed_mutex mutex_;  // of calls of NCCL and what follows
  std::list<ncclComm_t> comms_;
  bool aborted_ = false;
  Watchdog watchdog_;
};

/// Until the communicator is no longer in progress: before that no other call is allowed, and a
/// kernel may not be in its stream yet.
void Family::await(const std::string& what, ncclComm_t comm, double timeout) {
  constexpr int kTries = 1000;
  RunningTime waited(1);
  for (int tries = 0;; ++tries) {
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard<std::timed_mutex> lock(mutex_);
      const ncclResult_t asked = aborted_ ? ncclSuccess : nccl().CommGetAsyncError(comm, &state);
      state = is_error(asked) ? asked : state;
    }
    watchdog_.check(what);
    if (state == ncclSuccess) {
      return;
    }
    if (is_error(state) || waited.seconds() > timeout) {
      const std::string why =
          is_error(state)
              ? fmt::format("{}: {}", what, nccl_words(state, comm))
              : fmt::format("{} did not start in {} s; are all ranks there?", what, timeout);
      if (is_error(state)) {
        watchdog_.fail(why);
        throw CommError(why);
      }
      watchdog_.fail(why, Watchdog::Cause::timeout);
      throw TimeoutError(why);
    }
    if (tries < kTries) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

/// Returns NCCL's report since then; nothing during another call.
std::string Family::failure() {
  const std::unique_lock<std::timed_mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || aborted_) {
    return {};
  }
  select_gpu(side().stream());
  for (const ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    if (comm == nullptr) {
      continue;
    }
    const ncclResult_t asked = nccl().CommGetAsyncError(comm, &state);
    if (is_error(asked) || is_error(state)) {
      return nccl_words(is_error(asked) ? asked : state, comm);
    }
  }
  return {};
}

/// Ends what is under way, also where a call of NCCL has not come back.
void Family::abort_all() {
  const std::unique_lock<std::timed_mutex> lock(mutex_, kLockTimeout);
  aborted_ = true;
  std::vector<ncclComm_t> victims(comms_.rbegin(), comms_.rend());  // groups before their parents
  std::erase(victims, nullptr);
  run_bounded([victims] {
    for (const ncclComm_t comm : victims) {
      nccl().CommAbort(comm);
    }
  });
}

void Family::close(Slot slot) noexcept {
  try {
    const std::string what = fmt::format("rank {}: leaving", rank());
    if (watchdog_.failed()) {
      return;
    }
    if (std::uncaught_exceptions() > 0) {
      return watchdog_.fail(what + " after an error");
    }
    launch(what, *slot, kFinalizeTimeoutSeconds, [&] { return nccl().CommFinalize(*slot); });
    const std::unique_lock<std::timed_mutex> lock(mutex_);
    if (!aborted_) {
      const ncclComm_t comm = *slot;
      comms_.erase(slot);
      run_bounded([comm] { nccl().CommDestroy(comm); });
    }
  } catch (const std::exception&) {  // all has been aborted, and the run is ending anyway
    static_cast<void>(0);
  }
}

ncclConfig_t configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  // Groups take the buffers of the communicator that they come from. NCCL then forbids operations
  // of both by several threads at a time; NcclFamily runs one operation after another.
  config.splitShare = 1;
  return config;
}

class FamilyGroup final : public NcclGroup, NotCopied {
 public:
  FamilyGroup(std::shared_ptr<Family> family, Family::Slot slot, int size)
      : family_(std::move(family)), shared_(family_), slot_(slot), size_(size) {}
  ~FamilyGroup() override { family_->close(slot_); }

  const std::shared_ptr<NcclFamily>& family() const override { return shared_; }

  std::shared_ptr<NcclGroup> split(int color, int rank, int size, double timeout) override {
    const std::string what = fmt::format("rank {}: splitting a communicator", family_->rank());
    const ncclComm_t parent = *slot_;
    const auto made = family_->open(what, timeout, parent, [&](ncclComm_t* slot) {
      ncclConfig_t config = configuration();
      return nccl().CommSplit(parent, color, rank, slot, &config);
    });
    return std::make_shared<FamilyGroup>(family_, made, size);
  }

  void start(const NcclCall& call) override {
    auto* const stream = static_cast<cudaStream_t>(native_queue(family_->side().stream()));
    family_->launch(call.what, *slot_, call.timeout, [&] { return start(call, *slot_, stream); });
  }

 private:
  ncclResult_t start(const NcclCall& call, ncclComm_t comm, cudaStream_t stream) const {
    if (call.collective == Collective::messages) {
      return exchange(call.messages, comm, stream);
    }
    if (call.collective == Collective::all_to_all) {
      return exchange(messages_of(call), comm, stream);
    }
    if (call.collective == Collective::broadcast) {
      return nccl().Broadcast(call.send, call.recv, call.bytes, ncclUint8, call.root, comm, stream);
    }
    return nccl().AllGather(call.send, call.recv, call.bytes, ncclUint8, comm, stream);
  }

  std::vector<Message> messages_of(const NcclCall& call) const {
    std::vector<Message> messages;
    for (int peer = 0; peer < size_; ++peer) {
      const size_t part = static_cast<size_t>(peer) * call.bytes;
      void* const out = const_cast<void*>(offset_bytes(call.send, part));
      void* const in = offset_bytes(call.recv, part);
      messages.push_back({.peer = peer, .sends = true, .data = out, .bytes = call.bytes});
      messages.push_back({.peer = peer, .data = in, .bytes = call.bytes});
    }
    return messages;
  }

  static ncclResult_t exchange(std::span<const Message> messages, ncclComm_t comm,
                               cudaStream_t stream) {
    ncclResult_t result = nccl().GroupStart();
    for (const Message& message : messages) {
      if (is_error(result)) {
        break;
      }
      result =
          message.sends
              ? nccl().Send(message.data, message.bytes, ncclUint8, message.peer, comm, stream)
              : nccl().Recv(message.data, message.bytes, ncclUint8, message.peer, comm, stream);
    }
    const ncclResult_t end = nccl().GroupEnd();
    return is_error(result) ? result : end;
  }

  std::shared_ptr<Family> family_;
  std::shared_ptr<NcclFamily> shared_;
  Family::Slot slot_;
  int size_;
};

}  // namespace

NcclId new_nccl_id() {
  static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
  ncclUniqueId id = {};
  const ncclResult_t result = nccl().GetUniqueId(&id);
  if (is_error(result)) {
    throw CommError("starting NCCL: " + nccl_words(result, nullptr));
  }
  NcclId bytes = {};
  std::memcpy(bytes.data(), &id, sizeof(id));
  return bytes;
}

std::shared_ptr<NcclGroup> join_nccl(const NcclId& id, Device& device, int rank, int size,
                                     double timeout) {
  auto family = std::make_shared<Family>(device, rank);
  const std::string what = fmt::format("rank {} of {}: starting NCCL", rank, size);
  ncclUniqueId unique = {};
  std::memcpy(&unique, id.data(), sizeof(unique));
  const auto slot = family->open(what, timeout, nullptr, [&](ncclComm_t* made) {
    ncclConfig_t config = configuration();
    return nccl().CommInitRankConfig(made, size, unique, rank, &config);
  });
  return std::make_shared<FamilyGroup>(std::move(family), slot, size);
}

}  // namespace fp8train
