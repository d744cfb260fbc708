// The lists follow llama.cpp's converter (ggml-org/llama.cpp: convert_hf_to_gguf.py,
// get_vocab_base, get_vocab_base_pre and _create_vocab_sentencepiece).

#include "data/tokenizers/token_table.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json_error.h"
#include "base/text.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizers.h"
#include "data/tokenizers/split_patterns.h"

namespace fp8train {
namespace {

using Json = nlohmann::json;

constexpr float kLowestScore = -1e9F;  // of tokens that no pair makes

[[noreturn]] void refuse(const std::string& what) {
  throw DataError(fmt::format(
      "a tokenizer of {} cannot be written as lists of tokens; byte-level and sentencepiece-style "
      "BPE can",
      what));
}

void put(TokenTable& table, size_t id, std::string text, TokenType type) {
  constexpr size_t kMostTokens = size_t{1} << 24;
  if (id >= kMostTokens) refuse(fmt::format("an id of {}", id));
  for (size_t hole = table.tokens.size(); hole <= id; ++hole) {
    table.tokens.push_back(fmt::format("[PAD{}]", hole));
    table.types.push_back(TokenType::unused);
  }
  table.tokens[id] = std::move(text);
  table.types[id] = type;
}

/// How a byte-level pre-tokenizer splits texts.
struct Splitting {
  bool is_byte_level = false;
  bool adds_space = false;
  bool as_gpt2 = false;     ///< by ByteLevel's own expression
  std::string expressions;  ///< of stages before it
};

void read_stage(const Json& stage, Splitting& splitting) {
  const std::string type = stage.value("type", "");
  if (type == "Sequence") {
    for (const Json& part : stage.at("pretokenizers")) read_stage(part, splitting);
  } else if (type == "ByteLevel") {
    splitting.is_byte_level = true;
    splitting.adds_space = stage.value("add_prefix_space", true);
    splitting.as_gpt2 = stage.value("use_regex", true);
  } else if (type == "Split" && stage.at("pattern").contains("Regex")) {
    splitting.expressions += stage.at("pattern").at("Regex").get<std::string>();
  } else {
    splitting.expressions += stage.dump();  // no name is known for it
  }
}

/// llama.cpp's name (src/llama-vocab.cpp: llm_tokenizer_bpe). "llama-bpe" takes a whole piece that
/// is a token before any merge, "dbrx" is the same without.
std::string pre_name(const Splitting& splitting, bool ignore_merges, bool has_merges) {
  if (splitting.expressions.empty()) {
    return splitting.as_gpt2 || !has_merges ? "gpt-2" : "";
  }
  if (splitting.as_gpt2) return "";
  struct Named {
    std::string_view expression, name, when_ignoring_merges;
  };
  constexpr Named kNamed[] = {{tokenizers::kLlama3Pattern, "dbrx", "llama-bpe"},
                              {tokenizers::kQwenPattern, "qwen2", ""},
                              {tokenizers::kO200kPattern, "gpt-4o", ""},
                              {tokenizers::kTekkenPattern, "", "tekken"}};
  for (const Named& named : kNamed) {
    if (named.expression == splitting.expressions) {
      return std::string(ignore_merges ? named.when_ignoring_merges : named.name);
    }
  }
  return "";
}

std::pair<std::string, std::string> merge_of(const Json& merge) {
  if (merge.is_array()) return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  const auto text = merge.get<std::string>();
  const size_t space = text.find(' ', 1);
  if (space == std::string::npos) refuse("merges that are not pairs");
  return {text.substr(0, space), text.substr(space + 1)};
}

/// Scores that make the merges' order: the first one makes the best token.
void add_scores(const Json& model, TokenTable& table) {
  std::unordered_map<std::string, float> scores;
  for (const Json& merge : model.at("merges")) {
    const auto [left, right] = merge_of(merge);
    const auto rank = static_cast<int64_t>(scores.size());
    scores.emplace(left + right, static_cast<float>(-rank));  // the first one 0, not -0
  }
  for (const std::string& token : table.tokens) {
    const auto found = scores.find(token);
    table.scores.push_back(found == scores.end() ? kLowestScore : found->second);
  }
}

/// Whether a space is put in front of a text, by a normalizer or by Metaspace.
bool marks_first(const Json& document) {
  const std::string stages =
      document.value("normalizer", Json()).dump() + document.value("pre_tokenizer", Json()).dump();
  return stages.find("\"Prepend\"") != std::string::npos ||
         stages.find("\"prepend_scheme\":\"always\"") != std::string::npos ||
         stages.find("\"prepend_scheme\":\"first\"") != std::string::npos;
}

TokenTable from_transformers(const Json& document) {
  const Json& model = document.at("model");
  const auto kind = model.value("type", "BPE");
  Splitting splitting;
  if (document.contains("pre_tokenizer") && document["pre_tokenizer"].is_object()) {
    read_stage(document["pre_tokenizer"], splitting);
  }
  TokenTable table;
  const bool has_bytes = model.contains("byte_fallback") && model["byte_fallback"] == true;
  if (kind != "BPE" || (!splitting.is_byte_level && !has_bytes)) {
    const bool has_merges = model.contains("merges") && !model["merges"].empty();
    refuse(kind != "BPE" ? "kind " + kind : has_merges ? "kind BPE without bytes" : "characters");
  }
  table.kind = splitting.is_byte_level ? TokenTableKind::byte_level : TokenTableKind::scored;
  const bool scored = table.kind == TokenTableKind::scored;
  for (const auto& [text, id] : model.at("vocab").items()) {
    put(table, id.get<size_t>(), text,
        scored && tokenizers::byte_of_token(text) ? TokenType::byte : TokenType::normal);
  }
  const std::string unknown = model.value("unk_token", Json()).is_string()
                                  ? model["unk_token"].get<std::string>()
                                  : std::string();
  bool has_stripping = false;
  for (const Json& added : document.value("added_tokens", Json::array())) {
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      has_stripping = has_stripping || added.value(flag, false);
    }
    const auto text = added.at("content").get<std::string>();
    const bool special = added.value("special", false);
    const bool is_unknown = scored && text == unknown;
    put(table, added.at("id").get<size_t>(), text,
        is_unknown ? TokenType::unknown : (special ? TokenType::control : TokenType::user_defined));
    if (is_unknown) table.unknown = added["id"].get<int32_t>();
  }
  if (has_stripping) {
    table.differences.emplace_back(
        "does not know 'lstrip', 'rstrip' and 'single_word' of added tokens");
  }
  if (scored) {
    add_scores(model, table);
    table.pre = "default";
    table.adds_space = marks_first(document);
    return table;
  }
  for (const Json& merge : model.at("merges")) {
    const auto [left, right] = merge_of(merge);
    table.merges.push_back(fmt::format("{} {}", left, right));
  }
  table.adds_space = splitting.adds_space;
  if (table.adds_space) {
    table.differences.emplace_back("puts no space in front of a text for byte-level BPE");
  }
  if (const Json normalizer = document.value("normalizer", Json()); normalizer.is_object()) {
    table.differences.emplace_back(
        fmt::format("does not normalize texts ({})", normalizer.value("type", "a normalizer")));
  }
  table.pre = pre_name(splitting, model.value("ignore_merges", false), !table.merges.empty());
  return table;
}

/// BPE numbers its merges; Unigram has logarithms of probabilities.
TokenTable require_bpe(TokenTable table) {
  for (size_t id = 0; id < table.scores.size(); ++id) {
    const float score = table.scores[id];
    if (table.types[id] == TokenType::normal && score != std::round(score)) refuse("kind Unigram");
  }
  return table;
}

}  // namespace

TokenTable token_table(const Tokenizer& tokenizer) {
  try {
    if (tokenizer.type() == TokenizerType::sentencepiece) {
      return require_bpe(tokenizers::sentencepiece_table(tokenizer.to_json()));
    }
    const Json document = Json::parse(tokenizer.to_json());
    if (!document.contains("model")) refuse(fmt::format("type {}", name_of(tokenizer.type())));
    return from_transformers(document);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("the tokenizer's file: {}", plain_json_error(error)));
  }
}

}  // namespace fp8train
