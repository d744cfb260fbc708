#pragma once
// Regular expressions of tokenizer files, which are written for Oniguruma's Ruby syntax and matched
// here by PCRE2, with compiled code where it can compile. A Regex is immutable, and copies share
// the code; find() may be called from several threads.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// A range of bytes of a text.
struct Span {
  size_t begin;
  size_t end;
};

/// A compiled expression.
class Regex {
 public:
  /// Throws DataError that begins with `where` when the pattern is not understood.
  Regex(std::string_view pattern, const std::string& where);

  /// Finds the first match in well-formed UTF-8 `text` that begins at byte `from` or behind it.
  /// Returns false, and leaves `match` as it is, if there is none. Throws DataError when matching
  /// fails, as it does for a pattern that needs more than 64 MiB of memory for backtracking.
  bool find(std::string_view text, size_t from, Span& match) const;

  /// Calls visit(begin, end, is_match) for all matches that are not empty and for the parts between
  /// them, in order. Throws as find() does.
  template <typename Visit>
  void for_each_part(std::string_view text, Visit&& visit) const {
    size_t done = 0;
    Span match = {0, 0};
    for (size_t from = 0; from < text.size() && find(text, from, match);) {
      if (match.begin == match.end) {  // an empty match separates nothing
        from = next_code_point(text, match.end);
        continue;
      }
      if (match.begin > done) visit(done, match.begin, false);
      visit(match.begin, match.end, true);
      from = done = match.end;
    }
    if (done < text.size()) visit(done, text.size(), false);
  }

 private:
  static size_t next_code_point(std::string_view text, size_t position);

  struct Code;
  std::shared_ptr<const Code> code_;
};

/// Throws DataError: a text has become longer than `most` bytes.
[[noreturn]] void refuse_growth(const std::string& where, size_t most);

/// A string or a regular expression, {"String": "..."} or {"Regex": "..."}, that a normalizer
/// replaces or a pre-tokenizer splits at. Immutable; may be used from several threads.
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
