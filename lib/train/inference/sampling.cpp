#include "train/inference/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"

namespace fp8train {
namespace {

constexpr uint64_t kSamplingPurpose = 0x5A3B;

/// Keeps the smallest prefix of `order` (descending probability) that top_k and top_p allow.
size_t allowed_count(const std::vector<int32_t>& order, const std::vector<double>& probabilities,
                     const SamplingSettings& settings) {
  size_t count = order.size();
  if (settings.top_k > 0) {
    count = std::min(count, static_cast<size_t>(settings.top_k));
  }
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += probabilities[static_cast<size_t>(order[i])];
    if (sum >= settings.top_p) {
      return i + 1;
    }
  }
  return count;
}

}  // namespace

int32_t sample_token(const std::vector<float>& logits, const SamplingSettings& settings,
                     int64_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (settings.temperature == 0.0) {
    return static_cast<int32_t>(best - logits.begin());
  }
  std::vector<double> probabilities(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    probabilities[i] = std::exp((static_cast<double>(logits[i]) - *best) / settings.temperature);
    total += probabilities[i];
  }
  for (double& probability : probabilities) {
    probability /= total;
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return probabilities[static_cast<size_t>(a)] > probabilities[static_cast<size_t>(b)];
  });
  const size_t count = allowed_count(order, probabilities, settings);
  double allowed = 0;
  for (size_t i = 0; i < count; ++i) {
    allowed += probabilities[static_cast<size_t>(order[i])];
  }
  const uint64_t key = philox_key(settings.seed, kSamplingPurpose);
  const PhiloxBlock bits = philox(key, 0, static_cast<uint64_t>(position));
  double remaining = uniform_from_bits(bits.word[0]) * allowed;
  for (size_t i = 0; i + 1 < count; ++i) {
    remaining -= probabilities[static_cast<size_t>(order[i])];
    if (remaining < 0) {
      return order[i];
    }
  }
  return order[count - 1];
}

}  // namespace fp8train
