#pragma once
// Monotonic time for durations and throughput; wall-clock jumps do not disturb it.

#include <algorithm>
#include <chrono>

namespace fp8train {

/// Measures the seconds since its construction or restart().
class Stopwatch {
 public:
  /// Seconds since construction or the last restart().
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Seconds in which the process could run, as a thread sees it that asks at least every
/// `longest_gap` seconds: a longer gap, in which the process was stopped or suspended, counts as
/// that many. A job that its scheduler suspends for an hour has not lost its time when it
/// continues.
class RunningTime {
 public:
  explicit RunningTime(double longest_gap) : longest_gap_(longest_gap) {}

  double seconds() {
    seconds_ += std::min(since_.seconds(), longest_gap_);
    since_.restart();
    return seconds_;
  }

 private:
  Stopwatch since_;
  double longest_gap_;
  double seconds_ = 0;
};

}  // namespace fp8train
