#pragma once
// The vocabulary of a tokenizer as lists, for files that hold it next to weights (GGUF).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace fp8train {

/// The type of a token, with the numbers of sentencepiece (src/sentencepiece_model.proto), which
/// llama.cpp has too.
enum class TokenType : int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

/// The algorithm for which a table is made.
enum class TokenTableKind : uint8_t {
  byte_level,  ///< GPT-2's: tokens in its byte-level alphabet, with merges in order of rank
  scored,      ///< sentencepiece's BPE: the pair whose union has the highest score is merged
};

/// A vocabulary as lists by id.
struct TokenTable {
  TokenTableKind kind = TokenTableKind::byte_level;
  /// Name that llama.cpp has for the splitting of texts ("gpt-2", "llama-bpe"); empty: it has none.
  std::string pre;
  std::vector<std::string> tokens;  ///< by id; no id is left out ("[PAD7]")
  std::vector<TokenType> types;
  std::vector<float> scores;        ///< of `scored`
  std::vector<std::string> merges;  ///< of `byte_level`: "left right"
  int32_t unknown = -1;             ///< id, or -1
  bool adds_space = false;          ///< a space is put in front of a text
  /// The reasons why llama.cpp may give other ids than the tokenizer, a clause each that says what
  /// llama.cpp does.
  std::vector<std::string> differences;
};

/// Returns the vocabulary of a tokenizer. Throws DataError for one of neither kind (Unigram,
/// WordPiece, characters, none).
TokenTable token_table(const Tokenizer& tokenizer);

namespace tokenizers {

/// Returns the vocabulary of a tokenizer.model, also of a Unigram model, which token_table()
/// refuses. Throws DataError if sentencepiece cannot read the model (sentencepiece.cpp).
TokenTable sentencepiece_table(const std::string& model);

}  // namespace tokenizers
}  // namespace fp8train
