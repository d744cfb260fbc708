#pragma once
// Shared by the tokenizers' source files only.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace fp8train::detail {

constexpr const char* kTokenizerFormat = "fp8train-tokenizer";
constexpr int kTokenizerVersion = 1;

/// A char tokenizer from its characters, each one UTF-8 code point, in id order.
std::unique_ptr<Tokenizer> char_tokenizer_from(std::vector<std::string> characters,
                                               const std::string& where);

struct BpePiece {
  std::string text;
  float score = 0;
};

/// A llama2.c tokenizer from its pieces in id order. Throws DataError naming `where` when the byte
/// pieces are not in their places.
std::unique_ptr<Tokenizer> bpe_tokenizer_from(std::vector<BpePiece> pieces,
                                              const std::string& where);

/// Throws DataError unless 0 <= id < vocab_size.
void require_id(int32_t id, int64_t vocab_size);

}  // namespace fp8train::detail
