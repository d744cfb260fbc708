#include "comm/backends/progress_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "comm/backends/patient_wait.h"

namespace fp8train {
namespace {

constexpr double kAnswerSeconds = 2;  // within which the thread answers, unless it hangs

}  // namespace

bool PendingRequest::over_or_throw(const std::string& who) const {
  if (!failure_.empty()) {
    throw CommError(fmt::format("{}: {}: {}", who, name_, failure_));
  }
  return over_;
}

bool PendingRequest::is_over(const std::string& who) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return over_or_throw(who);
}

bool PendingRequest::wait(double seconds, const std::string& who) {
  std::unique_lock<std::mutex> lock(mutex_);
  return patient_wait(ended_, lock, seconds, [&] { return over_or_throw(who); });
}

double PendingRequest::ended_at() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_at_;
}

void PendingRequest::end(const std::string& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  ended_at_ = trace_clock();
  failure_ = failure;
  ended_.notify_all();
}

ProgressThread::ProgressThread(std::function<void()> begin, std::function<void()> end) {
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

void ProgressThread::leave() {
  post([this] { stop_ = true; });
  if (broken_) {
    over_.wait_for(std::chrono::duration<double>(kAnswerSeconds));
  } else {
    over_.wait();
  }
}

template <typename Future>
void ProgressThread::await(const Future& result, const char* what, double seconds) {
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
      throw TimeoutError(fmt::format("{} did not end in {} s: is another rank missing, or stopped?",
                                     what, seconds));
    }
  }
}

void ProgressThread::await_begin(const char* what, double seconds) {
  await(started_, what, seconds);
  started_.get();
}

void ProgressThread::run(const char* what, double seconds, std::function<void()> job) {
  auto task = std::make_shared<std::packaged_task<void()>>(std::move(job));
  std::future<void> result = task->get_future();
  post([task] { (*task)(); });
  await(result, what, seconds);
  result.get();
}

void ProgressThread::start(const std::shared_ptr<PendingRequest>& request) {
  post([this, request] {
    try {
      request->start();
      under_way_.push_back(request);
    } catch (const CommError& error) {
      request->end(error.what());
    }
  });
}

std::set<int> ProgressThread::unfinished_peers(const std::shared_ptr<PendingRequest>& request) {
  auto answer = std::make_shared<std::promise<std::set<int>>>();
  std::future<std::set<int>> result = answer->get_future();
  post([answer, request] { answer->set_value(request->unfinished_peers()); });
  const std::chrono::duration<double> limit(kAnswerSeconds);
  const bool answered = result.wait_for(limit) == std::future_status::ready;
  return answered ? result.get() : std::set<int>{};
}

void ProgressThread::abandon(const std::shared_ptr<PendingRequest>& request) {
  broken_ = true;
  run("giving up messages", kAnswerSeconds, [this, request] {
    request->abandon();
    std::erase(under_way_, request);
  });
}

void ProgressThread::run_last(const char* what, std::function<void()> job) {
  broken_ = true;
  run(what, kAnswerSeconds, std::move(job));
}

void ProgressThread::post(std::function<void()> job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back(std::move(job));
  woken_.notify_one();
}

void ProgressThread::work(const std::function<void()>& begin, const std::function<void()>& end,
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
void ProgressThread::take_jobs() {
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

void ProgressThread::progress_all() {
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

/// Cores may be fewer than ranks and their threads: whoever waits must not occupy one. A nap rather
/// than sched_yield, which on a busy core comes back after the others' whole time slices.
void ProgressThread::rest(bool progress) {
  constexpr int kTries = 300;
  constexpr auto kNap = std::chrono::microseconds(20);
  idle_rounds_ = progress ? 0 : idle_rounds_;
  if (!under_way_.empty() && idle_rounds_ >= kTries) {
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace fp8train
