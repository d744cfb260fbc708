#pragma once
// Text from a model: prefill of the prompt in chunks, then one token at a time with a KV cache. Has
// its own arenas, planned on the meta device, so that generating between training steps disturbs
// nothing.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "config/settings.h"
#include "data/tokenizer.h"
#include "device/arena.h"
#include "model/decoder.h"

namespace fp8train {

struct SamplingSettings {
  int64_t max_new_tokens = 100;
  double temperature = 0.8;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 1.0;        ///< smallest set of tokens with at least this probability
  uint64_t seed = 1;
};

/// Picks the next token from logits. The choice is a pure function of (logits, settings, position).
int32_t sample_token(const std::vector<float>& logits, const SamplingSettings& settings,
                     int64_t position);

class Generator {
 public:
  /// Allocates caches for `capacity` positions (at most the model's). `gatherer`:
  /// StepContext::gatherer.
  Generator(Device& device, Decoder& model, int64_t capacity,
            ParameterGatherer* gatherer = nullptr);

  /// Whether the passes that follow have no scaled GEMMs (Engine::plain()).
  void set_plain(bool plain) { plain_ = plain; }

  /// Continues `prompt` (not empty) and calls `on_token` with each new token until max_new_tokens,
  /// the end-of-sequence id, the capacity, or until it returns false. Throws ConfigError when the
  /// prompt does not fit.
  void generate(const std::vector<int32_t>& prompt, const SamplingSettings& settings,
                const std::function<bool(int32_t)>& on_token);

  /// Returns the logits of the token that follows `prompt`, one for each id of the vocabulary.
  /// Throws as generate() does.
  std::vector<float> logits_after(const std::vector<int32_t>& prompt);

 private:
  std::vector<float> next_logits(const int32_t* tokens, int64_t count);

  Device* device_;
  Decoder* model_;
  ParameterGatherer* gatherer_;
  int64_t capacity_;
  bool plain_ = false;
  std::vector<KvCache> caches_;  // views into memory_; filled while memory_ is made
  std::vector<Tensor> memory_;
  Arena saved_, scratch_;
  Tensor tokens_, logits_;
};

/// One continuation of each of the settings' prompts, a line each; `on_token` is called after each
/// new token.
std::string sample_texts(Generator& generator, const Tokenizer& tokenizer,
                         const SampleSettings& settings, uint64_t seed,
                         const std::function<void()>& on_token);

}  // namespace fp8train
