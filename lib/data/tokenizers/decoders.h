#pragma once
// Decoders of tokenizer.json (huggingface/tokenizers, src/decoders): token texts to a text.

#include <functional>
#include <string>
#include <vector>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// Changes the texts of tokens in place; they are then put together without anything in between.
/// Bytes that are not UTF-8 stay as they are. May be called from several threads.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;

/// Reads the field "decoder". Throws DataError for a kind that is not supported.
Decoder read_decoder(const JsonPart& part);

}  // namespace fp8train::tokenizers
