#include "data/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"

namespace fp8train {
namespace {

constexpr uint64_t kRounds = 6;
constexpr uint64_t kPurposePermutation = 0x7065726D;  // "perm"
constexpr uint64_t kPurposeOffset = 0x6F666673;       // "offs"

/// Uniform in [0, count) from 64 random bits: the high half of the product.
uint64_t below(uint64_t count, const PhiloxBlock& block) {
  const uint64_t bits = (static_cast<uint64_t>(block.word[1]) << 32) | block.word[0];
  return static_cast<uint64_t>((static_cast<__uint128_t>(bits) * count) >> 64);
}

}  // namespace

Permutation::Permutation(uint64_t key, uint64_t count) : key_(key), count_(count) {
  check(count >= 1 && count <= (1ULL << 62), "a permutation needs between 1 and 2^62 elements");
  half_bits_ = std::max(1, static_cast<int>(std::bit_width(count - 1) + 1) / 2);
}

uint64_t Permutation::encipher(uint64_t value) const {
  const uint64_t mask = (1ULL << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const PhiloxBlock block = philox(key_, round, right);
    const uint64_t mixed = left ^ (block.word[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  check(index < count_, "index outside the permutation");
  do {
    index = encipher(index);
  } while (index >= count_);
  return index;
}

SampleOrder::SampleOrder(int64_t corpus_size, int64_t seq_length, bool shuffle, uint64_t seed)
    : corpus_size_(corpus_size), seq_length_(seq_length), shuffle_(shuffle), seed_(seed) {
  check(seq_length >= 1, "seq_length must be positive");
  if (corpus_size < seq_length + 1) {
    throw DataError(
        fmt::format("the training data has {} tokens, but one sample needs {} "
                    "(seq_length {} + 1); add data or lower data.seq_length",
                    corpus_size, seq_length + 1, seq_length));
  }
  // Shuffled, the count must hold for every offset, so up to one window at the end of an epoch goes
  // unread.
  const int64_t windows = shuffle ? std::max<int64_t>(1, (corpus_size - seq_length) / seq_length)
                                  : (corpus_size - 1) / seq_length;
  samples_per_epoch_ = static_cast<uint64_t>(windows);
}

int64_t SampleOrder::start_of(uint64_t sample) const {
  const uint64_t epoch = sample / samples_per_epoch_;
  const uint64_t index = sample % samples_per_epoch_;
  if (!shuffle_) {
    return static_cast<int64_t>(index) * seq_length_;
  }
  const int64_t spare = corpus_size_ - 1 - static_cast<int64_t>(samples_per_epoch_) * seq_length_;
  const auto offsets = static_cast<uint64_t>(std::min(seq_length_ - 1, spare) + 1);
  const uint64_t offset = below(offsets, philox(philox_key(seed_, kPurposeOffset), 0, epoch));
  const Permutation permutation(philox_key(seed_, kPurposePermutation, epoch), samples_per_epoch_);
  return static_cast<int64_t>(permutation(index)) * seq_length_ + static_cast<int64_t>(offset);
}

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

template <typename GoesLeft>
Blend::Draw Blend::descend(uint64_t samples, const GoesLeft& goes_left) const {
  size_t begin = 0;
  size_t end = before_.size() - 1;
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    const uint64_t left = left_of(samples, begin, middle, end);
    if (goes_left(samples, begin, middle, end)) {
      samples = left;
      end = middle;
    } else {
      samples -= left;
      begin = middle;
    }
  }
  return {begin, samples};
}

Blend::Draw Blend::draw(uint64_t sample) const {
  return descend(sample, [&](uint64_t samples, size_t begin, size_t middle, size_t end) {
    return left_of(samples + 1, begin, middle, end) > left_of(samples, begin, middle, end);
  });
}

uint64_t Blend::count(size_t source, uint64_t samples) const {
  return descend(samples, [&](uint64_t, size_t, size_t middle, size_t) { return source < middle; })
      .index;
}

}  // namespace fp8train
