#pragma once
// The choice of the next token of a text by its logits.

#include <cstdint>
#include <vector>

namespace fp8train {

/// The choice of tokens in a generation.
struct SamplingSettings {
  int64_t max_new_tokens = 100;
  double temperature = 0.8;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 1.0;        ///< keep the smallest set of tokens with at least this probability
  uint64_t seed = 1;
};

/// Picks the next token from logits, one for each id, and returns its id. The choice is a pure
/// function of (logits, settings, position).
int32_t sample_token(const std::vector<float>& logits, const SamplingSettings& settings,
                     int64_t position);

}  // namespace fp8train
