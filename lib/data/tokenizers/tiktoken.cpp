// Files of ranks (openai/tiktoken, tiktoken/load.py) become a tokenizer.json: a token's rank is its
// id, and two tokens merge where their bytes together are a token, whose rank is the merge's. A
// file has at most 64 MiB, a token 1,024 bytes.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/text.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/own_format.h"
#include "data/tokenizers/registry.h"
#include "data/tokenizers/split_patterns.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kMaxRankBytes = 64U << 20;
constexpr size_t kMostTokenBytes = 1024;  // merges of a token take time in proportion to its square

/// A special token of a vocabulary.
struct SpecialToken {
  std::string_view content;
  int32_t id;
};

/// The pattern by which a published vocabulary splits texts, and its special tokens
/// (tiktoken_ext/openai_public.py; meta-llama/llama3, llama/tokenizer.py; QwenLM/Qwen,
/// tokenization_qwen.py).
struct RankPattern {
  std::string_view name;
  std::vector<std::string_view> file_names;  ///< of tiktoken files that are split so
  std::string_view expression;               ///< empty: that of GPT-2
  std::vector<SpecialToken> specials;
};

const std::vector<RankPattern>& rank_patterns() {
  static const std::vector<RankPattern> kPatterns = {
      {"r50k_base", {"r50k_base.tiktoken", "gpt2.tiktoken"}, "", {{"<|endoftext|>", 50256}}},
      {"p50k_base", {"p50k_base.tiktoken"}, "", {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       {"cl100k_base.tiktoken"},
       kLlama3Pattern,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base",
       {"o200k_base.tiktoken"},
       kO200kPattern,
       {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
      {"llama3",
       {"tokenizer.model", "llama3.tiktoken"},
       kLlama3Pattern,
       {{"<|begin_of_text|>", 128000},
        {"<|end_of_text|>", 128001},
        {"<|start_header_id|>", 128006},
        {"<|end_header_id|>", 128007},
        {"<|eot_id|>", 128009}}},
      {"qwen",
       {"qwen.tiktoken"},
       kQwenPattern,
       {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}}};
  return kPatterns;
}

/// Returns the names of all patterns for messages: "r50k_base, p50k_base, ...".
std::string rank_pattern_names() {
  return joined(rank_patterns(), &RankPattern::name);
}

const RankPattern& pattern_of(const TokenizerProbe& probe) {
  const std::string file = probe.path.filename().string();
  for (const RankPattern& pattern : rank_patterns()) {
    const auto& names = pattern.file_names;
    const bool is_file = std::find(names.begin(), names.end(), file) != names.end();
    if (probe.pattern.empty() ? is_file : probe.pattern == pattern.name) return pattern;
  }
  throw DataError(probe.pattern.empty()
                      ? fmt::format("{}: the name does not say which pattern splits the text; name "
                                    "it: {}#PATTERN (expected {})",
                                    probe.path.string(), probe.path.string(), rank_pattern_names())
                      : fmt::format("{}: unknown pattern '{}' (expected {})", probe.path.string(),
                                    probe.pattern, rank_pattern_names()));
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes += static_cast<char>((bits >> held) & 0xFF);
    }
  }
  return bytes;
}

/// Reads a line "BASE64 RANK"; returns nothing where it is not one.
std::optional<std::pair<std::string, int32_t>> read_rank(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos) return std::nullopt;
  auto bytes = from_base64(line.substr(0, space));
  const std::optional<int32_t> rank = whole_number<int32_t>(line.substr(space + 1));
  if (!bytes || bytes->empty() || !rank) return std::nullopt;
  return std::pair(std::move(*bytes), *rank);
}

using Ranks = std::vector<std::pair<std::string, int32_t>>;

Ranks read_ranks(const std::string& text, const std::string& where) {
  Ranks ranks;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    if (end > begin) {
      auto rank = read_rank(std::string_view(text).substr(begin, end - begin));
      if (!rank) {
        throw DataError(fmt::format("{}:{}: not a token in base64 and its rank", where, number));
      }
      if (rank->first.size() > kMostTokenBytes) {
        throw DataError(fmt::format("{}:{}: a token of {} bytes; at most {} are read", where,
                                    number, rank->first.size(), kMostTokenBytes));
      }
      ranks.push_back(std::move(*rank));
    }
    begin = end + 1;
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  return ranks;
}

/// Returns the field "pre_tokenizer" for an expression as in RankPattern.
nlohmann::ordered_json byte_level_pre_tokenizer(std::string_view expression) {
  nlohmann::ordered_json level = {{"type", "ByteLevel"},
                                  {"add_prefix_space", false},
                                  {"trim_offsets", true},
                                  {"use_regex", expression.empty()}};
  if (expression.empty()) return level;
  nlohmann::ordered_json split = {{"type", "Split"},
                                  {"pattern", {{"Regex", expression}}},
                                  {"behavior", "Isolated"},
                                  {"invert", false}};
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  stages.push_back(std::move(split));
  stages.push_back(std::move(level));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}};
}

/// Returns the text of tokenizer.json.
std::string json_of(const Ranks& ranks, const RankPattern& pattern) {
  std::unordered_map<std::string_view, int32_t> rank_of;
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  for (const auto& [bytes, rank] : ranks) {
    rank_of.emplace(bytes, rank);
    // operator[] would search all earlier keys.
    vocabulary.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(spelled(bytes), rank);
  }
  nlohmann::ordered_json document = transformers_document(std::move(vocabulary));
  auto& merges = document["model"]["merges"];
  for (const auto& [bytes, rank] : ranks) {
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const std::string_view left = std::string_view(bytes).substr(0, cut);
      const std::string_view right = std::string_view(bytes).substr(cut);
      if (rank_of.contains(left) && rank_of.contains(right)) {
        merges.push_back(nlohmann::ordered_json::array({spelled(left), spelled(right)}));
      }
    }
  }
  document["model"]["ignore_merges"] = true;
  for (const SpecialToken& token : pattern.specials) {
    nlohmann::ordered_json entry = {
        {"id", token.id},  {"content", token.content}, {"single_word", false}, {"lstrip", false},
        {"rstrip", false}, {"normalized", false},      {"special", true}};
    document["added_tokens"].push_back(std::move(entry));
  }
  document["pre_tokenizer"] = byte_level_pre_tokenizer(pattern.expression);
  document["decoder"] = byte_level_pre_tokenizer("");
  return document.dump(1) + "\n";
}

}  // namespace

bool is_tiktoken(const TokenizerProbe& probe) {
  const std::string extension = probe.path.extension().string();
  const std::string_view line = std::string_view(probe.head).substr(0, probe.head.find('\n'));
  return (extension == ".tiktoken" || extension == ".model") && read_rank(line).has_value();
}

std::unique_ptr<Tokenizer> open_tiktoken(const TokenizerProbe& probe) {
  const RankPattern& pattern = pattern_of(probe);
  const std::string where = probe.path.string();
  const Ranks ranks = read_ranks(read_text_file(probe.path, kMaxRankBytes), where);
  return tokenizer_from_json(json_of(ranks, pattern), where);
}

}  // namespace fp8train::tokenizers
