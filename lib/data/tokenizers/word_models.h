#pragma once
// The models WordPiece and WordLevel, as tokenizer.json describes them (huggingface/tokenizers,
// src/models). Encoding takes time in proportion to the word, however long its tokens are, and some
// nine bytes of memory for each of its bytes.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/text_matcher.h"
#include "data/tokenizers/token_model.h"

namespace fp8train::tokenizers {

/// The tables of a WordPiece or WordLevel model.
struct WordVocabulary {
  std::vector<std::string> tokens;  ///< by id
  std::string unknown;              ///< the token of words that cannot be written
  std::string continuing_prefix;    ///< in front of tokens within a word
  int64_t most_characters = 0;      ///< longer words are unknown
  bool whole_words = false;         ///< WordLevel: a word is a token or unknown
};

/// A WordPiece or WordLevel model. Immutable.
class WordModel final : public TokenModel {
 public:
  /// Throws DataError, which begins with `where`, if the vocabulary does not have the unknown
  /// token, and as TextMatcher does.
  WordModel(WordVocabulary vocabulary, const std::string& where);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  class Memory;
  bool append_parts(std::string_view word, Memory& memory, std::vector<int32_t>& ids) const;

  std::unordered_map<std::string_view, int32_t> ids_;
  int64_t most_characters_;
  std::optional<TextMatcher> reversed_;  ///< tokens from their last byte on; none for whole words
  int32_t unknown_ = -1;
};

}  // namespace fp8train::tokenizers
