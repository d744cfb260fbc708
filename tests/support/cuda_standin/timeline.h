#pragma once
// The time of the stand-in runtime. It passes in no clock: each call of the host takes a
// microsecond, work of a stream takes as many as are drawn for it, which is more on average, so
// that the GPU falls behind. Work is done when the host's time reaches its end: a copy reads its
// source as late as a GPU might. Not synchronized; Call (state.h) holds the mutex.

#include <cstdint>
#include <functional>
#include <map>

namespace fp8train::standin {

using Work = std::function<void()>;  ///< empty for work that has no effect, such as a kernel

class Timeline {
 public:
  explicit Timeline(uint64_t seed) : random_(seed) {}

  uint64_t now() const { return now_; }
  /// The host makes a call.
  void tick() { wait_until(now_ + 1); }
  /// The host waits, and does what ends until then.
  void wait_until(uint64_t time);
  void wait_for_all() { wait_until(last_end_); }

  /// Work that starts at `start` or now, whichever is later; returns its end.
  uint64_t add(uint64_t start, const Work& work);

 private:
  uint64_t now_ = 0;
  uint64_t last_end_ = 0;
  uint64_t random_;
  std::multimap<uint64_t, Work> pending_;  ///< by end; equal ones in the order of submission
};

}  // namespace fp8train::standin
