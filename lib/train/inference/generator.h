#pragma once
// Texts from a model: prefill of the prompts in chunks, then a token of each with KV caches. Has
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
#include "parallel/tensor_ranks.h"

namespace fp8train {

/// The other ranks that run a model, for passes without training. By default there is none.
struct ModelRanks {
  ParameterGatherer* gatherer = nullptr;  ///< StepContext::gatherer
  RankExchange* tensor = nullptr;         ///< those that share each layer
  RankExchange* experts = nullptr;        ///< those that have different experts
  Communicator* stages = nullptr;         ///< Group::pipe
  bool sums_in_fp32 = false;              ///< StepContext::sums_in_fp32
};
ModelRanks model_ranks(Engine& engine);

/// Whether the rows of a pass have the same codes whatever the other rows are, in the plan of the
/// model: no scale follows from the current values of several rows.
bool has_independent_rows(const Decoder& model);

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

/// One text to be generated.
struct TextRequest {
  std::vector<int32_t> prompt;
  SamplingSettings sampling;
};

/// Generates texts with a model, several at a time. Collective if passes of the model are
/// (Engine::passes_are_collective): all ranks get the same tokens.
class Generator {
 public:
  /// Allocates caches for `capacity` positions, or the model's longest sequence if that is shorter,
  /// of `texts` texts at a time; one at a time if its rows are not independent. `device`, `model`
  /// and what `ranks` names outlive the object.
  Generator(Device& device, Decoder& model, int64_t capacity, const ModelRanks& ranks = {},
            int64_t texts = 1);

  /// Sets whether the passes that follow have no scaled GEMMs (Engine::plain()).
  void set_plain(bool plain) { plain_ = plain; }

  /// Continues each prompt and calls `on_token` with the index of the request and each new token,
  /// up to max_new_tokens, the end-of-sequence id (for which it is not called) or the capacity, or
  /// until it returns false. Prompts are read one after the other; the next tokens of all texts
  /// that are under way are made in one pass, in which attention has one text at a time. A text
  /// that ends makes space for the next prompt. Throws ConfigError, before the first token, for a
  /// prompt that is empty, does not fit or has an id outside the vocabulary.
  void generate(const std::vector<TextRequest>& requests,
                const std::function<bool(size_t text, int32_t token)>& on_token);
  /// The same for one text.
  void generate(const std::vector<int32_t>& prompt, const SamplingSettings& settings,
                const std::function<bool(int32_t)>& on_token);

  /// Returns the logits of the token that follows `prompt`, one for each id of the vocabulary.
  /// Throws as generate() does.
  std::vector<float> logits_after(const std::vector<int32_t>& prompt);

 private:
  struct Text;

  void check_prompt(const std::vector<int32_t>& prompt) const;
  std::vector<float> logits_after(const std::vector<int32_t>& prompt, size_t slot);
  /// Appends `length` tokens to each of these slots, and returns the logits of each.
  std::vector<std::vector<float>> next_logits(const std::vector<size_t>& slots,
                                              const int32_t* tokens, int64_t length);
  void run_stage(MicroBatchPass pass, const std::vector<size_t>& slots, const View& logits);
  View starts_of(const std::vector<size_t>& slots);

  Device* device_;
  Decoder* model_;
  ModelRanks ranks_;
  std::optional<WholeRows> whole_rows_;
  bool plain_ = false;
  int64_t capacity_;
  std::vector<int64_t> lengths_;  ///< positions that each slot has in its caches
  std::vector<KvCache> caches_;   // of each block and slot: views into memory_
  std::vector<Tensor> memory_;
  Arena saved_, scratch_;
  Tensor tokens_, starts_, logits_;
  Tensor x_, y_;  // of a part of the model, for the longest chunk
};

/// Returns the generator for samples of a run, up to 8 texts at a time, or null on a rank that
/// makes none: all do, if passes of the engine's model are collective, else the one that leads.
std::shared_ptr<Generator> make_sampler(Engine& engine, int64_t capacity, int64_t texts);

/// Returns each of the settings' prompts with one continuation, and a line feed after each.
/// `on_token` is called after each new token. Throws as Generator::generate() does, and DataError
/// for a prompt that cannot be encoded.
std::string sample_texts(Generator& generator, const Tokenizer& tokenizer,
                         const SampleSettings& settings, uint64_t seed,
                         const std::function<void()>& on_token);

}  // namespace fp8train
