#include "data/tokenizers/own_format.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace fp8train::tokenizers {

nlohmann::ordered_json own_header(std::string_view type) {
  return {{"format", kOwnFormat}, {"version", kOwnVersion}, {"type", type}};
}

nlohmann::ordered_json transformers_document(nlohmann::ordered_json vocabulary) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::ordered_json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(vocabulary)},
            {"merges", nlohmann::ordered_json::array()}}}};
}

const nlohmann::json* find_own(const nlohmann::json& document) {
  if (!document.is_object()) return nullptr;
  const auto field = document.find(kOwnField);
  const nlohmann::json& own = field == document.end() ? document : *field;
  return own.is_object() && own.value("format", "") == kOwnFormat ? &own : nullptr;
}

std::unique_ptr<Tokenizer> read_own(const nlohmann::json& own, const std::string& where) {
  const int version = own.at("version").get<int>();
  if (version != kOwnVersion) {
    throw DataError(fmt::format("{}: tokenizer format version {}; this program reads version {}",
                                where, version, kOwnVersion));
  }
  const auto type = own.at("type").get<std::string>();
  if (type == "none") return make_id_tokenizer();
  if (type == "byte") return make_byte_tokenizer();
  if (type == "char") {
    return char_tokenizer_from(own.at("characters").get<std::vector<std::string>>(), where);
  }
  if (type == "llama2c-bpe") {
    std::vector<BpePiece> pieces;
    for (const auto& [text, score] :
         own.at("pieces").get<std::vector<std::pair<std::string, float>>>()) {
      pieces.push_back({text, score});
    }
    return bpe_tokenizer_from(std::move(pieces), where);
  }
  throw DataError(fmt::format(
      "{}: unknown tokenizer type '{}' (expected none, byte, char or llama2c-bpe)", where, type));
}

std::vector<TokenizerFile> transformers_files(std::string tokenizer_json, const std::string& bos,
                                              const std::string& eos) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"clean_up_tokenization_spaces", false}};
  if (!bos.empty()) config["bos_token"] = bos;
  if (!eos.empty()) config["eos_token"] = eos;
  return {{"tokenizer.json", std::move(tokenizer_json)},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

void require_id(int32_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    throw DataError(
        fmt::format("token id {} is outside the tokenizer's vocabulary of {}", id, vocab_size));
  }
}

}  // namespace fp8train::tokenizers
