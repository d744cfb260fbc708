#pragma once
// Checks that operations on a stream, for which no host thread waits, end in their time: a thread
// polls them. If one does not, or if the communicator has failed, the communicator is aborted once,
// and every later call throws, as a host's wait for other ranks does. train/watch/run_watchdog.h
// watches the rank's own work.

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/not_copied.h"
#include "device/device.h"

namespace fp8train {

/// The thread runs as long as this object lives.
class Watchdog : NotCopied {
 public:
  /// `failure` says what is wrong with the communicator, empty: nothing; `give_up` ends the
  /// operations that are under way. Both are called by the thread, and `give_up` also by fail(),
  /// once.
  Watchdog(std::function<std::string()> failure, std::function<void()> give_up)
      : failure_(std::move(failure)),
        give_up_(std::move(give_up)),
        running_(kLongestGap),
        thread_([this] { work(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      woken_.notify_all();
    }
    thread_.join();
  }

  /// An operation that ends with its event; `what`, such as "rank 1: all_gather 17", names it in
  /// messages.
  struct Operation {
    std::string what;
    double timeout = 0;
    std::shared_ptr<StreamEvent> end;
  };
  /// Adds an operation. All are on one stream and end in the order in which they are added.
  void watch(Operation operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const double limit = running_.seconds() + operation.timeout;
    under_way_.push_back({std::move(operation), limit});
  }

  /// The reason to give up: an error, or an operation that did not end in its time.
  enum class Cause : uint8_t { error, timeout };
  /// Gives up, for this reason, unless that has happened before. Any thread may call it.
  void fail(const std::string& why, Cause cause = Cause::error) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!why_.empty()) {
        return;
      }
      why_ = why;
      cause_ = cause;
    }
    give_up_();
  }
  bool failed() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !why_.empty();
  }
  /// Throws CommError with the reason if the communicator has been given up, and TimeoutError if an
  /// operation did not end in its time. `what` names the caller.
  void check(const std::string& what) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (why_.empty()) {
      return;
    }
    const std::string text = fmt::format("{}: the communicator has been given up: {}", what, why_);
    if (cause_ == Cause::timeout) {
      throw TimeoutError(text);
    }
    throw CommError(text);
  }

 private:
  static constexpr auto kLookInterval = std::chrono::milliseconds(20);  // a look costs microseconds
  static constexpr double kLongestGap = 1;  // seconds between looks, of a process that could run

  struct Watched {
    Operation operation;
    double limit = 0;  ///< seconds that running_ may take
  };

  struct Finding {
    std::string wrong;  ///< empty: nothing
    Cause cause = Cause::error;
  };

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!woken_.wait_for(lock, kLookInterval, [this] { return stop_ || !why_.empty(); })) {
      lock.unlock();
      Finding found;
      try {
        found = look();
      } catch (const std::exception& error) {  // the GPU's own failure
        found.wrong = error.what();
      }
      if (!found.wrong.empty()) {
        fail(found.wrong, found.cause);
      }
      lock.lock();
    }
  }

  Finding look() {
    std::list<Watched> looked_at;
    double time = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      looked_at.swap(under_way_);
      time = running_.seconds();
    }
    Finding finding = {.wrong = failure_()};
    std::string& wrong = finding.wrong;
    // On one stream the operations end in their order.
    while (wrong.empty() && !looked_at.empty() && looked_at.front().operation.end->reached()) {
      looked_at.pop_front();
    }
    if (!looked_at.empty()) {
      const Operation& first = looked_at.front().operation;
      if (!wrong.empty()) {
        wrong = fmt::format("{}: {}", first.what, wrong);
      } else if (time > looked_at.front().limit) {
        wrong = fmt::format(
            "{} did not end in {} s; a rank has not started it, or the network does not answer",
            first.what, first.timeout);
        finding.cause = Cause::timeout;
      }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    under_way_.splice(under_way_.begin(), looked_at);
    return finding;
  }

  std::function<std::string()> failure_;
  std::function<void()> give_up_;
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  std::list<Watched> under_way_;
  std::string why_;
  Cause cause_ = Cause::error;
  bool stop_ = false;
  RunningTime running_;
  std::thread thread_;
};

}  // namespace fp8train
