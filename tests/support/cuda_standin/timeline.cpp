#include "timeline.h"

#include <algorithm>

namespace fp8train::standin {

void Timeline::wait_until(uint64_t time) {
  now_ = std::max(now_, time);
  while (!pending_.empty() && pending_.begin()->first <= now_) {
    const Work work = std::move(pending_.begin()->second);
    pending_.erase(pending_.begin());
    work();
  }
}

uint64_t Timeline::add(uint64_t start, const Work& work) {
  constexpr uint64_t kLongest = 64;
  random_ = random_ * 6364136223846793005 + 1442695040888963407;  // Knuth, MMIX
  const uint64_t end = std::max(start, now_) + 1 + (random_ >> 33) % kLongest;
  last_end_ = std::max(last_end_, end);
  if (work) {
    pending_.emplace(end, work);
  }
  return end;
}

}  // namespace fp8train::standin
