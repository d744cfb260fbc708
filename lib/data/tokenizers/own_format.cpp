#include "data/tokenizers/own_format.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {

nlohmann::ordered_json own_header(TokenizerType type) {
  return {{"format", kOwnFormat}, {"version", kOwnVersion}, {"type", name_of(type)}};
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

bool is_own(const nlohmann::json& document) {
  return document.is_object() && document.value("format", "") == kOwnFormat;
}

std::unique_ptr<Tokenizer> recognize_own(const nlohmann::json& document) {
  const auto is_file_of = [&](const Tokenizer& tokenizer) {
    return nlohmann::json::parse(tokenizer.to_json()) == document;
  };
  const nlohmann::json& model = document.at("model");
  if (!model.is_object() || !model.contains("vocab") || !model["vocab"].is_object() ||
      !model.contains("merges") || !model["merges"].empty()) {
    return nullptr;
  }
  if (auto bytes = make_byte_tokenizer(); is_file_of(*bytes)) return bytes;
  std::vector<std::string> characters(model["vocab"].size());
  for (const auto& [token, id] : model["vocab"].items()) {
    const bool has_index = id.is_number_unsigned() && id.get<uint64_t>() < characters.size() &&
                           code_point_length(token, 0) == token.size() && !token.empty();
    if (!has_index || !characters[id.get<size_t>()].empty()) return nullptr;
    characters[id.get<size_t>()] = token;
  }
  if (characters.empty()) return nullptr;
  auto chars = char_tokenizer_from(std::move(characters), "tokenizer.json");
  return is_file_of(*chars) ? std::move(chars) : nullptr;
}

std::unique_ptr<Tokenizer> read_own(const nlohmann::json& own, const std::string& where) {
  const int version = own.at("version").get<int>();
  if (version != kOwnVersion) {
    throw DataError(fmt::format("{}: tokenizer format version {}; this program reads version {}",
                                where, version, kOwnVersion));
  }
  const auto name = own.at("type").get<std::string>();
  const std::optional<TokenizerType> type = value_in(kTokenizerTypes, name);
  if (type == TokenizerType::none) return make_id_tokenizer();
  if (type == TokenizerType::byte) return make_byte_tokenizer();
  if (type == TokenizerType::character) {
    return char_tokenizer_from(own.at("characters").get<std::vector<std::string>>(), where);
  }
  throw DataError(
      fmt::format("{}: unknown tokenizer type '{}' (expected none, byte or char); export the model "
                  "with the version of the program that wrote it",
                  where, name));
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
