#include "data/blend.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/philox.h"

namespace fp8train {
namespace {

constexpr uint64_t kPurposeSource = 0x736F7572;  // "sour"

std::vector<double> weights_of(const Corpus& corpus) {
  if (!corpus.is_blend()) return {1.0};
  std::vector<double> weights;
  for (const CorpusSource& source : corpus.sources()) weights.push_back(source.weight);
  return weights;
}

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

TrainingOrder::TrainingOrder(const Corpus& corpus, int64_t seq_length, bool shuffle, uint64_t seed)
    : blend_(weights_of(corpus)) {
  if (!corpus.is_blend()) {
    sources_.push_back({0, SampleOrder(corpus.size(), seq_length, shuffle, seed)});
    return;
  }
  for (const CorpusSource& source : corpus.sources()) {
    const uint64_t key = philox_key(seed, kPurposeSource, sources_.size());
    try {
      sources_.push_back({source.begin, SampleOrder(source.size, seq_length, shuffle, key)});
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", source.path, error.what()));
    }
  }
}

int64_t TrainingOrder::start_of(uint64_t sample) const {
  const Blend::Draw draw = blend_.draw(sample);
  const Source& source = sources_[draw.source];
  return source.begin + source.order.start_of(draw.index);
}

std::vector<double> TrainingOrder::epochs(uint64_t samples) const {
  std::vector<double> result;
  for (size_t i = 0; i < sources_.size(); ++i) {
    result.push_back(static_cast<double>(blend_.count(i, samples)) /
                     static_cast<double>(sources_[i].order.samples_per_epoch()));
  }
  return result;
}

}  // namespace fp8train
