#pragma once
// The field "post_processor" of tokenizer.json (huggingface/tokenizers, src/processors): ids before
// and after a text.

#include <cstdint>
#include <vector>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// The ids before and after a text.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

/// Reads the field "post_processor". Throws DataError for a kind that is not supported.
PostProcessor read_post_processor(const JsonPart& part);

}  // namespace fp8train::tokenizers
