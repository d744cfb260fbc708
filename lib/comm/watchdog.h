#pragma once
// Watches operations which run on a stream, and that nobody on the host waits for, so that they end
// in their time: a thread looks at them now and then. Where one does not, or the communicator has
// failed, the communicator is given up, once, and all that is asked afterwards throws: as a wait of
// the host for other ranks does. What the rank itself does is watched by train/run_watchdog.h.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "device/device.h"

namespace fp8train {

class Watchdog {
 public:
  /// `failure` says what is wrong with the communicator, empty: nothing; `give_up` ends what is
  /// under way. Both are called by the thread, and `give_up` also by fail().
  Watchdog(std::function<std::string()> failure, std::function<void()> give_up);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// An operation that ends with its event; `what`, such as "rank 1: all_gather 17", for messages.
  struct Operation {
    std::string what;
    double timeout = 0;
    std::shared_ptr<StreamEvent> end;
  };
  void watch(Operation operation);

  /// Why: an error, or that something did not end in its time.
  enum class Cause : uint8_t { error, timeout };
  /// Gives up, for this reason, unless that has happened before.
  void fail(const std::string& why, Cause cause = Cause::error);
  bool failed() const;
  /// Throws CommError with the reason where the communicator has been given up, TimeoutError where
  /// an operation did not end in its time; `what` asks.
  void check(const std::string& what) const;

 private:
  struct Watched {
    Operation operation;
    double limit = 0;  ///< of running_
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
