#pragma once
// Normalizers of tokenizer.json (huggingface/tokenizers, src/normalizers): changes of a text before
// it is split. Immutable; called from several threads.

#include <memory>
#include <string>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;

  /// Changes well-formed `text` in place.
  virtual void apply(std::string& text) const = 0;

  /// Whether a text may be cut where Tokenizer::last_cut() of such a file cuts, and normalized in
  /// parts.
  virtual bool works_in_parts() const { return false; }

 protected:
  Normalizer() = default;
};

/// The field "normalizer". Throws DataError for a kind that is not supported.
std::unique_ptr<Normalizer> read_normalizer(const JsonPart& part);

}  // namespace fp8train::tokenizers
