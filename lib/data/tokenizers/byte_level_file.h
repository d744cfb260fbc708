#pragma once
// Writes tokenizer.json of a byte-level BPE vocabulary, and the patterns that split texts for such
// vocabularies, by name.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fp8train::tokenizers {

/// A special token of a vocabulary.
struct SpecialToken {
  std::string_view content;
  int32_t id;
};

/// How a published vocabulary splits texts, and its special tokens (tiktoken_ext/openai_public.py;
/// meta-llama/llama3, llama/tokenizer.py; QwenLM/Qwen, tokenization_qwen.py).
struct RankPattern {
  std::string_view name;
  std::vector<std::string_view> file_names;  ///< of tiktoken files that are split so
  std::string_view expression;               ///< empty: that of GPT-2
  std::vector<SpecialToken> specials;
};

/// Returns the patterns that are known.
std::span<const RankPattern> rank_patterns();

/// Returns the names of all patterns for messages: "r50k_base, p50k_base, ...".
std::string rank_pattern_names();

/// The content of a tokenizer.json of a byte-level BPE vocabulary.
struct ByteLevelFile {
  std::vector<std::pair<std::string, int32_t>> tokens;      ///< bytes and id
  std::vector<std::pair<std::string, std::string>> merges;  ///< bytes of both, in order of rank
  std::string_view expression;                              ///< as in RankPattern
  std::vector<SpecialToken> specials;
  bool ignore_merges = false;
};

/// Returns the field "pre_tokenizer" for an expression as in RankPattern.
nlohmann::ordered_json byte_level_pre_tokenizer(std::string_view expression);

/// Returns the text of tokenizer.json.
std::string byte_level_json(const ByteLevelFile& file);

}  // namespace fp8train::tokenizers
