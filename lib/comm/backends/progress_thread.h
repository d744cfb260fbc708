#pragma once
// A thread that makes all calls of a message library: messages move while the rank computes (a
// library may make progress only inside of calls), the library needs no locks, and a collective
// that hangs leaves the rank able to say so.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/not_copied.h"
#include "base/trace.h"
#include "comm/backends/patient_wait.h"

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
  bool is_over(const std::string& who) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return over_or_throw(who);
  }
  /// Waits for its end. Returns false if it has not ended after `seconds` in which the process
  /// could run.
  bool wait(double seconds, const std::string& who) {
    std::unique_lock<std::mutex> lock(mutex_);
    return patient_wait(ended_, lock, seconds, [&] { return over_or_throw(who); });
  }
  /// Returns when it ended, by trace_clock(), or 0 before.
  double ended_at() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ended_at_;
  }

  // Called by the thread. These functions may throw CommError.
  virtual void start() = 0;
  /// True when it has ended.
  virtual bool progress() = 0;
  /// The ranks that have not answered.
  virtual std::set<int> unfinished_peers() = 0;
  /// Gives up what has not ended.
  virtual void abandon() = 0;
  /// Ends the request. `failure` says why it failed; empty: it has not.
  void end(const std::string& failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    ended_at_ = trace_clock();
    failure_ = failure;
    ended_.notify_all();
  }

 private:
  bool over_or_throw(const std::string& who) const {
    if (!failure_.empty()) {
      throw CommError(fmt::format("{}: {}: {}", who, name_, failure_));
    }
    return over_;
  }

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
  ProgressThread(std::function<void()> begin, std::function<void()> end) {
    std::promise<void> started;
    std::promise<void> over;
    started_ = started.get_future().share();
    over_ = over.get_future();
    std::thread([this, begin = std::move(begin), end = std::move(end), started = std::move(started),
                 over = std::move(over)]() mutable {
      work(begin, end, started);
      over.set_value();
    }).detach();
  }
  ~ProgressThread() = delete;

  /// Waits for the end of `begin`, at most `seconds`. Throws what it throws; TimeoutError, which
  /// names it `what`.
  void await_begin(const char* what, double seconds) {
    await(started_, what, seconds);
    started_.get();
  }
  /// Runs `job` on the thread, and waits. What it throws comes here, TimeoutError where it takes
  /// longer than `seconds`: it must own what it uses.
  void run(const char* what, double seconds, std::function<void()> job) {
    auto task = std::make_shared<std::packaged_task<void()>>(std::move(job));
    std::future<void> result = task->get_future();
    post([task] { (*task)(); });
    await(result, what, seconds);
    result.get();
  }
  /// Starts a collective on the thread and returns at once. An error of its start ends the request.
  void start(const std::shared_ptr<PendingRequest>& request) {
    post([this, request] {
      try {
        request->start();
        under_way_.push_back(request);
      } catch (const CommError& error) {
        request->end(error.what());
      }
    });
  }
  /// Returns the ranks that a collective waits for; empty where the thread does not answer within 2
  /// s.
  std::set<int> unfinished_peers(const std::shared_ptr<PendingRequest>& request) {
    auto answer = std::make_shared<std::promise<std::set<int>>>();
    std::future<std::set<int>> result = answer->get_future();
    post([answer, request] { answer->set_value(request->unfinished_peers()); });
    const std::chrono::duration<double> limit(kAnswerSeconds);
    const bool answered = result.wait_for(limit) == std::future_status::ready;
    return answered ? result.get() : std::set<int>{};
  }
  /// Gives up a collective whose buffers are going away; the library is not ended later, since
  /// other ranks may be gone. Throws TimeoutError where the thread does not answer.
  void abandon(const std::shared_ptr<PendingRequest>& request) {
    broken_ = true;
    run("giving up messages", kAnswerSeconds, [this, request] {
      request->abandon();
      std::erase(under_way_, request);
    });
  }
  /// Runs `job`, which ends all ranks and this process. Throws TimeoutError where the library does
  /// not come back within 2 s.
  void run_last(const char* what, std::function<void()> job) {
    broken_ = true;
    run(what, kAnswerSeconds, std::move(job));
  }
  /// Called at the end of the process. Waits for ranks that have not ended, unless they may be
  /// gone.
  void leave() {
    post([this] { stop_ = true; });
    if (broken_) {
      over_.wait_for(std::chrono::duration<double>(kAnswerSeconds));
    } else {
      over_.wait();
    }
  }

 private:
  static constexpr double kAnswerSeconds = 2;  // within which the thread answers, unless it hangs

  template <typename Future>
  void await(const Future& result, const char* what, double seconds) {
    constexpr double kSlice = 1;
    RunningTime waited(2 * kSlice);
    while (true) {
      const double left = seconds - waited.seconds();
      const std::chrono::duration<double> slice(std::clamp(left, 0.0, kSlice));
      if (result.wait_for(slice) == std::future_status::ready) {
        return;
      }
      if (left <= 0) {
        broken_ = true;
        throw TimeoutError(fmt::format(
            "{} did not end in {} s: is another rank missing, or stopped?", what, seconds));
      }
    }
  }

  void post(std::function<void()> job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    woken_.notify_one();
  }

  void work(const std::function<void()>& begin, const std::function<void()>& end,
            std::promise<void>& started) {
    try {
      begin();
    } catch (...) {
      started.set_exception(std::current_exception());
      return;
    }
    started.set_value();
    while (!stop_) {
      take_jobs();
      progress_all();
    }
    if (!broken_) {  // else other ranks may be gone, and the library would wait for them
      end();
    }
  }

  /// Sleeps while there is nothing to do at all.
  void take_jobs() {
    std::deque<std::function<void()>> jobs;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (under_way_.empty()) {
        woken_.wait(lock, [this] { return !jobs_.empty(); });
      }
      jobs.swap(jobs_);
    }
    idle_rounds_ = jobs.empty() ? idle_rounds_ + 1 : 0;
    for (const auto& job : jobs) {
      job();
    }
  }

  void progress_all() {
    const size_t before = under_way_.size();
    std::erase_if(under_way_, [](const std::shared_ptr<PendingRequest>& request) {
      try {
        if (!request->progress()) {
          return false;
        }
        request->end("");
      } catch (const CommError& error) {
        request->end(error.what());
      }
      return true;
    });
    rest(under_way_.size() != before);
  }

  /// Cores may be fewer than ranks and their threads: whoever waits must not occupy one. A nap
  /// rather than sched_yield, which on a busy core comes back after the others' whole time slices.
  void rest(bool progress) {
    constexpr int kTries = 300;
    constexpr auto kNap = std::chrono::microseconds(20);
    idle_rounds_ = progress ? 0 : idle_rounds_;
    if (!under_way_.empty() && idle_rounds_ >= kTries) {
      std::this_thread::sleep_for(kNap);
    }
  }

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
