#pragma once
// Waits with a time-out that counts only time in which the process could run (RunningTime).

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace fp8train {

/// Waits until `ready()` is true. Returns false if it is not after `seconds`.
template <typename Ready>
bool patient_wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  double seconds, const Ready& ready) {
  constexpr double kSlice = 1;
  RunningTime waited(2 * kSlice);
  for (double left = seconds; left > 0; left = seconds - waited.seconds()) {
    const std::chrono::duration<double> slice(std::min(left, kSlice));
    if (changed.wait_for(lock, slice, ready)) {
      return true;
    }
  }
  return ready();
}

}  // namespace fp8train
