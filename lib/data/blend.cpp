#include "data/blend.h"

#include <cmath>

#include "base/error.h"

namespace fp8train {
namespace {

size_t middle_of(size_t begin, size_t end) {
  return begin + (end - begin) / 2;
}

}  // namespace

Blend::Blend(std::span<const double> weights) : before_{0.0} {
  check(!weights.empty(), "a blend needs a source");
  for (const double weight : weights) {
    check(weight > 0 && std::isfinite(weight), "weights of a blend are above 0");
    before_.push_back(before_.back() + weight);
  }
}

uint64_t Blend::left_of(uint64_t samples, size_t begin, size_t middle, size_t end) const {
  const double part = (before_[middle] - before_[begin]) / (before_[end] - before_[begin]);
  // In units of 2^-64: exact, so that all machines round alike.
  const uint64_t units = part >= 1.0 ? UINT64_MAX : static_cast<uint64_t>(std::ldexp(part, 64));
  constexpr auto kHalf = static_cast<unsigned __int128>(1) << 63;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(samples) * units + kHalf) >> 64);
}

Blend::Draw Blend::draw(uint64_t sample) const {
  size_t begin = 0;
  size_t end = before_.size() - 1;
  while (end - begin > 1) {
    const size_t middle = middle_of(begin, end);
    const uint64_t left = left_of(sample, begin, middle, end);
    if (left_of(sample + 1, begin, middle, end) > left) {
      sample = left;
      end = middle;
    } else {
      sample -= left;
      begin = middle;
    }
  }
  return {begin, sample};
}

uint64_t Blend::count(size_t source, uint64_t samples) const {
  size_t begin = 0;
  size_t end = before_.size() - 1;
  while (end - begin > 1) {
    const size_t middle = middle_of(begin, end);
    const uint64_t left = left_of(samples, begin, middle, end);
    if (source < middle) {
      samples = left;
      end = middle;
    } else {
      samples -= left;
      begin = middle;
    }
  }
  return samples;
}

}  // namespace fp8train
