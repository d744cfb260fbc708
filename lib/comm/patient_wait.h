#pragma once
// Waiting with a time-out in which only time counts that the process could run: a job that its
// scheduler suspends for an hour, or a user with Ctrl-Z, has not lost its time when it goes on.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace fp8train {

/// False when `ready()` is not true after `seconds`.
template <typename Ready>
bool patient_wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  double seconds, const Ready& ready) {
  using Seconds = std::chrono::duration<double>;
  constexpr double kSlice = 1;
  for (double left = seconds; left > 0;) {
    const double slice = std::min(left, kSlice);
    const auto begin = std::chrono::steady_clock::now();
    const auto end =
        begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(Seconds(slice));
    if (changed.wait_until(lock, end, ready)) {
      return true;
    }
    const double passed = Seconds(std::chrono::steady_clock::now() - begin).count();
    left -= std::min(passed, 2 * slice);
  }
  return ready();
}

}  // namespace fp8train
