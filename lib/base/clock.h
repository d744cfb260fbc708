#pragma once
// Monotonic time for durations and throughput; wall-clock jumps do not disturb it.

#include <chrono>

namespace fp8train {

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

}  // namespace fp8train
