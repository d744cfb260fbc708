#pragma once
// Checks that operations on a stream, for which no host thread waits, end in their time: a thread
// polls them. If one does not, or if the communicator has failed, the communicator is aborted once,
// and every later call throws, as a host's wait for other ranks does. train/watch/run_watchdog.h
// watches the rank's own work.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/not_copied.h"
#include "device/device.h"

namespace fp8train {

/// The thread runs as long as this object lives.
class Watchdog : NotCopied {
 public:
  /// `failure` says what is wrong with the communicator, empty: nothing; `give_up` ends the
  /// operations that are under way. Both are called by the thread, and `give_up` also by fail(),
  /// once.
  Watchdog(std::function<std::string()> failure, std::function<void()> give_up);
  ~Watchdog();

  /// An operation that ends with its event; `what`, such as "rank 1: all_gather 17", names it in
  /// messages.
  struct Operation {
    std::string what;
    double timeout = 0;
    std::shared_ptr<StreamEvent> end;
  };
  /// Adds an operation. All are on one stream and end in the order in which they are added.
  void watch(Operation operation);

  /// The reason to give up: an error, or an operation that did not end in its time.
  enum class Cause : uint8_t { error, timeout };
  /// Gives up, for this reason, unless that has happened before. Any thread may call it.
  void fail(const std::string& why, Cause cause = Cause::error);
  bool failed() const;
  /// Throws CommError with the reason if the communicator has been given up, and TimeoutError if an
  /// operation did not end in its time. `what` names the caller.
  void check(const std::string& what) const;

 private:
  struct Watched {
    Operation operation;
    double limit = 0;  ///< seconds that running_ may take
  };

  struct Finding {
    std::string wrong;  ///< empty: nothing
    Cause cause = Cause::error;
  };

  void work();
  Finding look();

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
