#include "timeline.h"

#include <algorithm>

namespace fp8train::standin {

bool Timeline::advance_to(uint64_t time) {
  while (!pending_.empty() && pending_.begin()->first <= time) {
    const auto first = pending_.begin();
    if (!first->second()) {
      now_ = std::max(now_, first->first - 1);
      return false;
    }
    pending_.erase(first);
  }
  now_ = std::max(now_, time);
  return true;
}

uint64_t Timeline::draw_end(uint64_t start) {
  constexpr uint64_t kLongest = 64;
  random_ = random_ * 6364136223846793005 + 1442695040888963407;  // Knuth, MMIX
  const uint64_t end = std::max(start, now_) + 1 + (random_ >> 33) % kLongest;
  last_end_ = std::max(last_end_, end);
  return end;
}

uint64_t Timeline::add(uint64_t start, const Work& work) {
  const uint64_t end = draw_end(start);
  if (work) {
    pending_.emplace(end, [work] {
      work();
      return true;
    });
  }
  return end;
}

uint64_t Timeline::add_late(uint64_t start, const LateWork& work) {
  const uint64_t end = draw_end(start);
  pending_.emplace(end, work);
  return end;
}

}  // namespace fp8train::standin
