#pragma once
// Normalizers of tokenizer.json (huggingface/tokenizers, src/normalizers): changes of a text before
// it is split. At most 256 of them follow each other, and none makes a text of n bytes longer than
// 64 n + 65,536 bytes: that bounds memory and time, and is above what any form of Unicode does
// (U+FDFA becomes eleven times as long).

#include <functional>
#include <string>

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

}  // namespace fp8train::tokenizers
