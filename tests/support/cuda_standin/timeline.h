#pragma once
// The time of the stand-in runtime. It passes in no clock: each call of the host takes a
// microsecond, work of a stream takes as many as are drawn for it, which is more on average, so
// that the GPU falls behind. Work is done when the host's time reaches its end: a copy reads its
// source as late as a GPU might. At the end of what waits for other ranks time stands still until
// they have come. Not synchronized; Call (state.h) holds the mutex.

#include <cstdint>
#include <functional>
#include <map>

namespace fp8train::standin {

using Work = std::function<void()>;  ///< empty for work that has no effect, such as a kernel
/// Work that other ranks have a part in: does it, if that can be, and says whether it is done.
using LateWork = std::function<bool()>;

class Timeline {
 public:
  explicit Timeline(uint64_t seed) : random_(seed) {}

  uint64_t now() const { return now_; }
  uint64_t last_end() const { return last_end_; }  ///< of all work
  /// The host makes a call.
  void tick() { advance_to(now_ + 1); }
  /// Does what ends until then. False where time stands still before.
  bool advance_to(uint64_t time);

  /// Work that starts at `start` or now, whichever is later; returns its end.
  uint64_t add(uint64_t start, const Work& work);
  uint64_t add_late(uint64_t start, const LateWork& work);

 private:
  uint64_t draw_end(uint64_t start);

  uint64_t now_ = 0;
  uint64_t last_end_ = 0;
  uint64_t random_;
  std::multimap<uint64_t, LateWork> pending_;  ///< by end; equal ones in the order of submission
};

}  // namespace fp8train::standin
