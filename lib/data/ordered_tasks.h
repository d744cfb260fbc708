#pragma once
// Runs tasks on several threads and delivers their results in the order in which the tasks were
// started. Only a few tasks per thread are under way, so memory does not grow with their number.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <thread>
#include <utility>

namespace fp8train {

/// Runs tasks, and passes their results to a function in order. Used by one thread.
template <typename Result>
class OrderedTasks {
 public:
  using Sink = std::function<void(Result result)>;

  /// `threads` 0: one for each processor; 1: work is done at once, on the caller's thread. `sink`
  /// is called on the thread that calls start() or finish().
  OrderedTasks(int64_t threads, Sink sink)
      : threads_(threads > 0 ? static_cast<size_t>(threads)
                             : std::max(1U, std::thread::hardware_concurrency())),
        sink_(std::move(sink)) {}

  /// Starts `work`. Throws what earlier work or `sink` threw, and with one thread what this work
  /// throws.
  void start(std::function<Result()> work) {
    if (threads_ == 1) {
      sink_(work());
      return;
    }
    if (running_.size() >= threads_ * kTasksPerThread) deliver_first();
    running_.push_back(std::async(std::launch::async, std::move(work)));
  }

  /// Waits until all that was started is done and its results are passed on. Throws as start()
  /// does.
  void finish() {
    while (!running_.empty()) deliver_first();
  }

 private:
  static constexpr size_t kTasksPerThread = 2;

  void deliver_first() {
    Result result = running_.front().get();
    running_.pop_front();
    sink_(std::move(result));
  }

  size_t threads_;
  std::deque<std::future<Result>> running_;
  Sink sink_;
};

}  // namespace fp8train
