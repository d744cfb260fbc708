#pragma once
// A thread that makes all calls of a message library: messages move while the rank computes (a
// library may make progress only inside of calls), the library needs no locks, and a collective
// that hangs leaves the rank able to say so.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/not_copied.h"

namespace fp8train {

/// A collective under way. The progress thread alone calls the virtual functions.
class PendingRequest : NotCopied {
 public:
  explicit PendingRequest(std::string name) : name_(std::move(name)) {}
  virtual ~PendingRequest() = default;

  const std::string& name() const { return name_; }

  // These functions may be called by any thread. Both throw CommError, which begins with `who`,
  // when the request has failed.
  /// Whether the request has ended.
  bool is_over(const std::string& who);
  /// Waits for its end. Returns false if it has not ended after `seconds` in which the process
  /// could run.
  bool wait(double seconds, const std::string& who);
  /// Returns when it ended, by trace_clock(), or 0 before.
  double ended_at();

  // Called by the thread. These functions may throw CommError.
  virtual void start() = 0;
  /// True when it has ended.
  virtual bool progress() = 0;
  /// The ranks that have not answered.
  virtual std::set<int> unfinished_peers() = 0;
  /// Gives up what has not ended.
  virtual void abandon() = 0;
  /// Ends the request. `failure` says why it failed; empty: it has not.
  void end(const std::string& failure);

 private:
  bool over_or_throw(const std::string& who) const;

  std::string name_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  double ended_at_ = 0;
  std::string failure_;
};

/// The thread that calls the communication library for a communicator.
class ProgressThread : NotCopied {
 public:
  /// Starts the thread, which calls `begin` first and, unless the other ranks may be gone, `end`
  /// last. Both are called on the thread; `begin` may throw. The object is never destroyed: a
  /// thread that does not come back from the library may use it to the end of the process.
  ProgressThread(std::function<void()> begin, std::function<void()> end);
  ~ProgressThread() = delete;

  /// Waits for the end of `begin`, at most `seconds`. Throws what it throws; TimeoutError, which
  /// names it `what`.
  void await_begin(const char* what, double seconds);
  /// Runs `job` on the thread, and waits. What it throws comes here, TimeoutError where it takes
  /// longer than `seconds`: it must own what it uses.
  void run(const char* what, double seconds, std::function<void()> job);
  /// Starts a collective on the thread and returns at once. An error of its start ends the request.
  void start(const std::shared_ptr<PendingRequest>& request);
  /// Returns the ranks that a collective waits for; empty where the thread does not answer within 2
  /// s.
  std::set<int> unfinished_peers(const std::shared_ptr<PendingRequest>& request);
  /// Gives up a collective whose buffers are going away; the library is not ended later, since
  /// other ranks may be gone. Throws TimeoutError where the thread does not answer.
  void abandon(const std::shared_ptr<PendingRequest>& request);
  /// Runs `job`, which ends all ranks and this process. Throws TimeoutError where the library does
  /// not come back within 2 s.
  void run_last(const char* what, std::function<void()> job);
  /// Called at the end of the process. Waits for ranks that have not ended, unless they may be
  /// gone.
  void leave();

 private:
  template <typename Future>
  void await(const Future& result, const char* what, double seconds);
  void post(std::function<void()> job);
  void work(const std::function<void()>& begin, const std::function<void()>& end,
            std::promise<void>& started);
  void take_jobs();
  void progress_all();
  void rest(bool progress);

  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::function<void()>> jobs_;
  std::atomic<bool> broken_ = false;
  // Used by the thread alone.
  bool stop_ = false;
  int idle_rounds_ = 0;
  std::vector<std::shared_ptr<PendingRequest>> under_way_;
  std::shared_future<void> started_;
  std::future<void> over_;
};

}  // namespace fp8train
