#pragma once
// Text from a model: prefill of the prompt in chunks, then one token at a time with a KV cache. Has
// its own arenas, planned on the meta device, so that generating between training steps disturbs
// nothing.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "config/settings.h"
#include "data/tokenizer.h"
#include "device/arena.h"
#include "engine/engine.h"
#include "model/decoder.h"
#include "parallel/whole_rows.h"

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

/// The other ranks that run a model, for passes without training. By default there is none.
struct ModelRanks {
  ParameterGatherer* gatherer = nullptr;  ///< StepContext::gatherer
  RankExchange* tensor = nullptr;         ///< those that share each layer
  RankExchange* experts = nullptr;        ///< those that have different experts
  Communicator* stages = nullptr;         ///< Group::pipe
  bool sums_in_fp32 = false;              ///< StepContext::sums_in_fp32
};
ModelRanks model_ranks(Engine& engine);

/// Generates text with a model, one sequence at a time. Collective if passes of the model are
/// (Engine::passes_are_collective): all ranks get the same tokens.
class Generator {
 public:
  /// Allocates caches for `capacity` positions, or the model's longest sequence if that is shorter.
  /// `device`, `model` and what `ranks` names outlive the object.
  Generator(Device& device, Decoder& model, int64_t capacity, const ModelRanks& ranks = {});

  /// Sets whether the passes that follow have no scaled GEMMs (Engine::plain()).
  void set_plain(bool plain) { plain_ = plain; }

  /// Continues `prompt` and calls `on_token` with each new token, up to max_new_tokens, the
  /// end-of-sequence id (for which it is not called) or the capacity, or until it returns false.
  /// Throws ConfigError for a prompt that is empty, does not fit or has an id outside the
  /// vocabulary.
  void generate(const std::vector<int32_t>& prompt, const SamplingSettings& settings,
                const std::function<bool(int32_t)>& on_token);

  /// Returns the logits of the token that follows `prompt`, one for each id of the vocabulary.
  /// Throws as generate() does.
  std::vector<float> logits_after(const std::vector<int32_t>& prompt);

 private:
  std::vector<float> next_logits(const int32_t* tokens, int64_t count);
  void run_stage(MicroBatchPass pass);

  Device* device_;
  Decoder* model_;
  ModelRanks ranks_;
  std::optional<WholeRows> whole_rows_;
  int64_t capacity_;
  bool plain_ = false;
  std::vector<KvCache> caches_;  // views into memory_; filled while memory_ is made
  std::vector<Tensor> memory_;
  Arena saved_, scratch_;
  Tensor tokens_, logits_;
  Tensor x_, y_;  // of a part of the model, for the longest chunk
};

/// Returns each of the settings' prompts with one continuation, and a line feed after each.
/// `on_token` is called after each new token. Throws as Generator::generate() does, and DataError
/// for a prompt that cannot be encoded.
std::string sample_texts(Generator& generator, const Tokenizer& tokenizer,
                         const SampleSettings& settings, uint64_t seed,
                         const std::function<void()>& on_token);

}  // namespace fp8train
