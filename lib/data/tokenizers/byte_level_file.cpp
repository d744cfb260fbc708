#include "data/tokenizers/byte_level_file.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/own_format.h"
#include "data/tokenizers/split_patterns.h"

namespace fp8train::tokenizers {
std::span<const RankPattern> rank_patterns() {
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

std::string rank_pattern_names() {
  return joined(rank_patterns(), &RankPattern::name);
}

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

std::string byte_level_json(const ByteLevelFile& file) {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  for (const auto& [bytes, id] : file.tokens) {
    // emplace_back: operator[] would search all earlier keys
    vocabulary.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(spelled(bytes), id);
  }
  nlohmann::ordered_json document = transformers_document(std::move(vocabulary));
  auto& merges = document["model"]["merges"];
  for (const auto& [left, right] : file.merges) {
    merges.push_back(nlohmann::ordered_json::array({spelled(left), spelled(right)}));
  }
  document["model"]["ignore_merges"] = file.ignore_merges;
  for (const SpecialToken& token : file.specials) {
    nlohmann::ordered_json entry = {
        {"id", token.id},  {"content", token.content}, {"single_word", false}, {"lstrip", false},
        {"rstrip", false}, {"normalized", false},      {"special", true}};
    document["added_tokens"].push_back(std::move(entry));
  }
  document["pre_tokenizer"] = byte_level_pre_tokenizer(file.expression);
  document["decoder"] = byte_level_pre_tokenizer("");
  return document.dump(1) + "\n";
}

}  // namespace fp8train::tokenizers
