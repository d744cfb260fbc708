#pragma once
// The vocabulary of a tokenizer as lists, for files that hold it next to weights (GGUF).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace fp8train {

/// With sentencepiece's numbers (src/sentencepiece_model.proto), which llama.cpp has too.
enum class TokenType : int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

enum class TokenTableKind : uint8_t {
  byte_level,  ///< GPT-2's: tokens in its byte-level alphabet, with merges in order of rank
  scored,      ///< sentencepiece's BPE: the pair whose union has the highest score is merged
};

struct TokenTable {
  TokenTableKind kind = TokenTableKind::byte_level;
  /// How texts are split, by llama.cpp's name ("gpt-2", "llama-bpe"); empty: it has no name for it.
  std::string pre;
  std::vector<std::string> tokens;  ///< by id; no id is left out ("[PAD7]")
  std::vector<TokenType> types;
  std::vector<float> scores;        ///< of `scored`
  std::vector<std::string> merges;  ///< of `byte_level`: "left right"
  int32_t unknown = -1;             ///< id, or -1
  bool adds_space = false;          ///< of `scored`: in front of a text
  /// Where llama.cpp gives other ids than the tokenizer: what it does otherwise, a clause each.
  std::vector<std::string> differences;
};

/// Throws DataError for a tokenizer that is of neither kind (Unigram, WordPiece, characters, none).
TokenTable token_table(const Tokenizer& tokenizer);

namespace tokenizers {

/// Of a tokenizer.model, for token_table(): of either kind (sentencepiece.cpp).
TokenTable sentencepiece_table(const std::string& model);

}  // namespace tokenizers
}  // namespace fp8train
