#pragma once
// Added and special tokens of tokenizer.json (huggingface/tokenizers, src/tokenizer/
// added_vocabulary.rs): they are found in the text before the model sees it, the longest of those
// that begin at a position first. Time grows with the text only, whatever the tokens are; memory is
// 16 bytes for each position at which a token begins.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/not_copied.h"
#include "data/tokenizers/json_part.h"
#include "data/tokenizers/text_matcher.h"
#include "data/tokenizers/text_parts.h"

namespace fp8train::tokenizers {

/// An entry of "added_tokens".
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  ///< not within a word
  bool lstrip = false;       ///< takes the white space in front of it
  bool rstrip = false;       ///< takes the white space behind it
  bool normalized = false;   ///< is looked for in the normalized text
  bool special = false;      ///< is left out when ids are decoded
};

/// Reads the field "added_tokens". Throws DataError, also for an id from which more than 2^20 ids
/// below it have no token, where `known` ids have one in the vocabulary.
std::vector<AddedToken> read_added_tokens(const JsonPart& part, size_t known);

/// Finds one kind of added tokens, those of normalized or those of raw text. Immutable.
class AddedTokenFinder : NotCopied {
 public:
  using TextSink = std::function<void(std::string_view text, bool at_start)>;
  using TokenSink = std::function<void(int32_t id)>;

  /// Finds the tokens of `all` whose `normalized` is this. `normalizer` changes the texts of
  /// normalized tokens first. Throws as TextMatcher and the normalizer do; errors begin with
  /// `where`.
  AddedTokenFinder(const std::vector<AddedToken>& all, bool normalized,
                   const Normalizer& normalizer, const std::string& where);

  /// Calls text() for each text between tokens (never empty) and token() for each token, in order.
  /// `at_start` is passed on to the text that begins where `whole` begins.
  void split(std::string_view whole, bool at_start, const TextSink& text,
             const TokenSink& token) const;

  /// Whether there are no tokens to find.
  bool empty() const { return tokens_.empty(); }
  /// Whether a token holds a space or takes white space that is next to it.
  bool touches_spaces() const { return touches_spaces_; }
  /// Whether a token holds a line feed or takes white space that is next to it.
  bool touches_lines() const { return touches_lines_; }

 private:
  std::vector<AddedToken> tokens_;
  std::optional<TextMatcher> reversed_;  ///< their texts from the last byte on
  bool touches_spaces_ = false;
  bool touches_lines_ = false;
};

}  // namespace fp8train::tokenizers
