#pragma once
// The settings of "Metaspace" in tokenizer.json, which the pre-tokenizer and the decoder share:
// spaces are spelled as a visible character.

#include <cstdint>
#include <string>
#include <string_view>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// U+2581, which spells a space in the vocabularies of sentencepiece.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// The settings of "Metaspace".
struct Metaspace {
  enum class Prepend : uint8_t { always, first, never };
  std::string replacement;  ///< one character, usually U+2581
  Prepend prepend = Prepend::always;
  bool splits = true;
};

/// Reads the settings. Files of before tokenizers 0.15 say add_prefix_space instead of
/// prepend_scheme. Throws DataError.
Metaspace read_metaspace(const JsonPart& part);

}  // namespace fp8train::tokenizers
