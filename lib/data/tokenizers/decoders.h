#pragma once
// Decoders of tokenizer.json (huggingface/tokenizers, src/decoders): token texts to a text.
// Immutable; called from several threads.

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

class Decoder {
 public:
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Changes the texts in place; what is left is put together without anything in between. Bytes
  /// that are not UTF-8 stay as they are.
  virtual void apply(std::vector<std::string>& tokens) const = 0;

 protected:
  Decoder() = default;
};

/// The field "decoder". Throws DataError for a kind that is not supported.
std::unique_ptr<Decoder> read_decoder(const JsonPart& part);

}  // namespace fp8train::tokenizers
