#pragma once
// {"String": "..."} or {"Regex": "..."} of tokenizer.json: a text that a normalizer replaces or a
// pre-tokenizer splits at. Immutable; may be used from several threads.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizers/json_part.h"
#include "data/tokenizers/regex.h"

namespace fp8train::tokenizers {

/// Throws DataError: a text has become longer than `most` bytes.
[[noreturn]] void refuse_growth(const std::string& where, size_t most);

/// A string or a regular expression that is looked for in texts.
class Pattern {
 public:
  /// Throws DataError when it is neither of the two or the expression is not understood.
  explicit Pattern(const JsonPart& part);

  /// Returns the source of the expression; empty for a string.
  const std::string& expression() const { return expression_; }

  /// Calls visit(begin, end, is_match) for all matches and for the parts between them, in order.
  template <typename Visit>
  void for_each_part(std::string_view text, Visit&& visit) const {
    if (regex_) {
      regex_->for_each_part(text, visit);
      return;
    }
    size_t done = 0;
    for (size_t begin = text.find(literal_); begin != std::string_view::npos;
         begin = text.find(literal_, done)) {
      if (begin > done) visit(done, begin, false);
      done = begin + literal_.size();
      visit(begin, done, true);
    }
    if (done < text.size()) visit(done, text.size(), false);
  }

  /// Returns `text` with `content` in place of each match. Throws as refuse_growth() does if the
  /// result is longer than `most` bytes.
  std::string replaced(std::string_view text, std::string_view content, size_t most,
                       const std::string& where) const {
    std::string result;
    result.reserve(text.size());
    for_each_part(text, [&](size_t begin, size_t end, bool is_match) {
      const std::string_view part = is_match ? content : text.substr(begin, end - begin);
      if (part.size() > most - std::min(most, result.size())) refuse_growth(where, most);
      result.append(part);
    });
    return result;
  }

 private:
  std::string literal_;
  std::string expression_;
  std::optional<Regex> regex_;
};

}  // namespace fp8train::tokenizers
