#pragma once
// Parts of tokenizer.json (huggingface/tokenizers, src/normalizers, src/decoders, src/processors)
// that change a text before it is split, make a text of tokens, and add ids around a text. At most
// 256 normalizers follow each other, and none makes a text of n bytes longer than 64 n + 65,536
// bytes: that bounds memory and time, and is above what any form of Unicode does (U+FDFA becomes
// eleven times as long).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// A change of texts.
struct Normalizer {
  /// Changes well-formed `text` in place. May be called from several threads. Throws DataError for
  /// a text that grows beyond the bound. Empty: changes nothing.
  std::function<void(std::string& text)> apply;
  /// Whether a text may be cut where Tokenizer::last_cut() of such a file cuts, and normalized in
  /// parts.
  bool works_in_parts = false;
};

/// Reads the field "normalizer". Throws DataError for a kind that is not supported, and for more
/// than 256 kinds in sequence.
Normalizer read_normalizer(const JsonPart& part);

/// Changes the texts of tokens in place; they are then put together without anything in between.
/// Bytes that are not UTF-8 stay as they are. May be called from several threads.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;

/// Reads the field "decoder". Throws DataError for a kind that is not supported.
Decoder read_decoder(const JsonPart& part);

/// The ids before and after a text.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

/// Reads the field "post_processor". Throws DataError for a kind that is not supported.
PostProcessor read_post_processor(const JsonPart& part);

}  // namespace fp8train::tokenizers
