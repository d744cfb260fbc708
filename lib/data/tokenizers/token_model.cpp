#include "data/tokenizers/token_model.h"

#include <fmt/format.h>

#include "data/tokenizers/bpe_model.h"
#include "data/tokenizers/unigram_model.h"
#include "data/tokenizers/word_models.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

/// {"token": id, ...} by id.
std::vector<std::string> read_vocabulary(const JsonPart& part) {
  const JsonPart vocabulary = part.at("vocab");
  if (!vocabulary.value().is_object() || vocabulary.value().empty()) {
    vocabulary.refuse("is not a table of tokens and their ids");
  }
  std::vector<std::string> tokens;
  for (const auto& [token, id] : vocabulary.value().items()) {
    const int64_t number = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (number < 0 || token.empty()) {
      vocabulary.refuse(fmt::format("token '{}' has no id of 0 or above", printable(token)));
    }
    require_dense(vocabulary, number, vocabulary.size());
    const auto at = static_cast<size_t>(number);
    if (at >= tokens.size()) tokens.resize(at + 1);
    if (!tokens[at].empty()) {
      vocabulary.refuse(fmt::format("tokens '{}' and '{}' have the same id {}",
                                    printable(tokens[at]), printable(token), at));
    }
    tokens[at] = token;
  }
  return tokens;
}

/// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const JsonPart& part) {
  const nlohmann::json& value = part.value();
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  part.refuse("a merge is \"a b\" or [\"a\", \"b\"]");
}

std::unique_ptr<TokenModel> read_bpe(const JsonPart& part, bool byte_level) {
  part.only({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
             "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!part.text_or(name, "").empty()) part.at(name).refuse("is not supported");
  }
  if (part.has("dropout") && part.at("dropout").value() != 0) {
    part.at("dropout").refuse("merges are not dropped at random here; set it to null");
  }
  BpeVocabulary vocabulary;
  vocabulary.tokens = read_vocabulary(part);
  const JsonPart merges = part.at("merges");
  if (!merges.value().is_array()) merges.refuse("is not a list");
  vocabulary.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    vocabulary.merges.push_back(read_merge(merges.at(i)));
  }
  vocabulary.unknown = part.text_or("unk_token", "");
  vocabulary.byte_level = byte_level;
  vocabulary.byte_fallback = part.flag_or("byte_fallback", false);
  vocabulary.fuse_unknown = part.flag_or("fuse_unk", false);
  vocabulary.ignore_merges = part.flag_or("ignore_merges", false);
  return std::make_unique<BpeModel>(std::move(vocabulary), part.where());
}

std::unique_ptr<TokenModel> read_unigram(const JsonPart& part, bool byte_level) {
  part.only({"unk_id", "vocab", "byte_fallback"});
  if (byte_level) part.refuse("a Unigram model behind ByteLevel is not supported");
  const JsonPart list = part.at("vocab");
  if (!list.value().is_array() || list.value().empty()) {
    list.refuse("is not a list of tokens and their scores");
  }
  UnigramVocabulary vocabulary;
  for (const nlohmann::json& entry : list.value()) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      list.refuse(fmt::format("token {} is not [text, score]", vocabulary.tokens.size()));
    }
    vocabulary.tokens.push_back(entry[0].get<std::string>());
    vocabulary.scores.push_back(entry[1].get<double>());
  }
  vocabulary.unknown = part.has("unk_id") ? part.number("unk_id") : -1;
  vocabulary.byte_fallback = part.flag_or("byte_fallback", false);
  return std::make_unique<UnigramModel>(std::move(vocabulary), part.where());
}

std::unique_ptr<TokenModel> read_words(const JsonPart& part, bool byte_level) {
  part.only({"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  if (byte_level) part.refuse("a model of words behind ByteLevel is not supported");
  WordVocabulary vocabulary;
  vocabulary.tokens = read_vocabulary(part);
  vocabulary.whole_words = part.type() == "WordLevel";
  vocabulary.unknown = part.text_or("unk_token", "[UNK]");
  vocabulary.continuing_prefix = part.text_or("continuing_subword_prefix", "##");
  vocabulary.most_characters =
      part.has("max_input_chars_per_word") ? part.number("max_input_chars_per_word") : 100;
  return std::make_unique<WordModel>(std::move(vocabulary), part.where());
}

}  // namespace

std::unique_ptr<TokenModel> read_token_model(const JsonPart& part, bool byte_level) {
  // Files of before tokenizers 0.9 do not name the type of BPE.
  const std::string type = part.text_or("type", part.has("merges") ? "BPE" : "");
  if (type == "BPE") return read_bpe(part, byte_level);
  if (type == "Unigram") return read_unigram(part, byte_level);
  if (type == "WordPiece" || type == "WordLevel") return read_words(part, byte_level);
  refuse_type(part, "models", "BPE, Unigram, WordPiece, WordLevel");
}

}  // namespace fp8train::tokenizers
