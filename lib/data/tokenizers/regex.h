#pragma once
// Regular expressions of tokenizer files, which are written for Oniguruma's Ruby syntax and matched
// here by PCRE2, with compiled code where it can compile. A Regex is immutable, and copies share
// the code; find() may be called from several threads.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

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

}  // namespace fp8train::tokenizers
