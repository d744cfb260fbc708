#include "data/tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/tokenizer_detail.h"

namespace fp8train {
namespace {

constexpr size_t kMaxTokenizerJson = 64U << 20;

std::unique_ptr<Tokenizer> from_document(const nlohmann::json& document, const std::string& where) {
  const int version = document.at("version").get<int>();
  if (version != detail::kTokenizerVersion) {
    throw DataError(fmt::format("{}: tokenizer format version {}; this program reads version {}",
                                where, version, detail::kTokenizerVersion));
  }
  const auto type = document.at("type").get<std::string>();
  if (type == "none") {
    return make_id_tokenizer();
  }
  if (type == "byte") {
    return make_byte_tokenizer();
  }
  if (type == "char") {
    return detail::char_tokenizer_from(document.at("characters").get<std::vector<std::string>>(),
                                       where);
  }
  if (type == "llama2c-bpe") {
    std::vector<detail::BpePiece> pieces;
    for (const auto& [text, score] :
         document.at("pieces").get<std::vector<std::pair<std::string, float>>>()) {
      pieces.push_back({text, score});
    }
    return detail::bpe_tokenizer_from(std::move(pieces), where);
  }
  throw DataError(fmt::format(
      "{}: unknown tokenizer type '{}'; known: none, byte, char, llama2c-bpe", where, type));
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where) {
  try {
    const nlohmann::json document = nlohmann::json::parse(text);
    if (!document.is_object() || document.value("format", "") != detail::kTokenizerFormat) {
      const bool hugging_face = document.is_object() && document.contains("model");
      throw DataError(
          fmt::format("{}: {}; tokenize the text elsewhere into llm.c or raw u16 token files "
                      "(data.tokenizer: none), or use byte, "
                      "char or a llama2.c tokNNN.bin",
                      where,
                      hugging_face ? "Hugging Face tokenizers are not implemented"
                                   : "not a tokenizer.json of this program"));
    }
    return from_document(document, where);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: not a tokenizer.json: {}", where, error.what()));
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name_or_path,
                                          const std::function<std::string()>& training_text) {
  if (name_or_path == "none") {
    return make_id_tokenizer();
  }
  if (name_or_path == "byte") {
    return make_byte_tokenizer();
  }
  if (name_or_path == "char") {
    return make_char_tokenizer(training_text());
  }
  std::filesystem::path path = name_or_path;
  if (std::filesystem::is_directory(path)) {
    path /= "tokenizer.json";
  }
  if (!std::filesystem::exists(path)) {
    throw DataError(
        fmt::format("tokenizer '{}': neither none, byte nor char, and there is no file {}",
                    name_or_path, path.string()));
  }
  if (path.extension() == ".json") {
    return tokenizer_from_json(read_text_file(path, kMaxTokenizerJson), path.string());
  }
  if (path.extension() == ".bin") {
    return read_llama2c_tokenizer(path);
  }
  throw DataError(
      fmt::format("tokenizer {}: expected tokenizer.json or a llama2.c tokNNN.bin", path.string()));
}

}  // namespace fp8train
