#pragma once
// Regular expressions of tokenizer files, which are written for Oniguruma's Ruby syntax and matched
// here by PCRE2's compiled code. A Regex is immutable, and copies share the code; find() may be
// called from several threads.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace fp8train::tokenizers {

struct Span {
  size_t begin;
  size_t end;
};

class Regex {
 public:
  /// Throws DataError that begins with `where` when the pattern is not understood.
  Regex(std::string_view pattern, const std::string& where);

  /// The first match in well-formed UTF-8 `text` that begins at byte `from` or behind it. Throws
  /// DataError when the pattern needs more memory for backtracking than is allowed (64 MiB).
  bool find(std::string_view text, size_t from, Span& match) const;

  /// Calls visit(begin, end, is_match) for all matches and for what lies between them, in order.
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
