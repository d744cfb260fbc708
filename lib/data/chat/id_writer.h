#pragma once
// The text of a rendered template as ids.

#include <vector>

#include "data/chat/chat_encoder.h"
#include "data/chat/jinja/text.h"
#include "data/chat/special_tokens.h"

namespace fp8train {

/// Returns the ids of a text. Special tokens are found in the template's own text alone, and white
/// space that belongs to them is left out. Ids with a byte of `targets` are targets. Throws as
/// Tokenizer::encode() does.
ChatEncoder::Encoded write_ids(const jinja::Text& text, const std::vector<ByteRange>& targets,
                               const Tokenizer& tokenizer, const SpecialTokens& tokens);

}  // namespace fp8train
