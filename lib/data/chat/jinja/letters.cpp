#include "data/chat/jinja/letters.h"

#include <algorithm>
#include <utility>

#include "data/chat/jinja/text.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::jinja {
namespace {

using tokenizers::CodePoint;

/// Changes each code point: `raises` says of one after another which becomes upper case.
template <typename Raises>
std::string changed(std::string_view text, Raises raises) {
  constexpr char32_t kSharpS = 0xDF;  // the letter with two in upper case
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = tokenizers::whole_code_point_at(text, at);
    const std::string_view bytes = text.substr(at, c.bytes);
    at += c.bytes;
    const bool is_upper = raises(c.value);
    if (c.value == 0) {
      out += bytes;  // no whole code point
    } else if (!is_upper) {
      out += tokenizers::lower_case(bytes);
    } else if (c.value == kSharpS) {
      out += raises(c.value) ? "SS" : "Ss";  // as a second letter: upper() and title()
    } else {
      tokenizers::append_utf8(out, tokenizers::upper_case(c.value));
    }
  }
  return out;
}

}  // namespace

std::string upper(std::string_view text) {
  return changed(text, [](char32_t) { return true; });
}

std::string lower(std::string_view text) {
  return changed(text, [](char32_t) { return false; });
}

std::string title(std::string_view text) {
  return changed(text, [behind_letter = false](char32_t c) mutable {
    return !std::exchange(behind_letter, tokenizers::is_letter(c));
  });
}

std::string capitalized(std::string_view text) {
  return changed(text,
                 [is_first = true](char32_t) mutable { return std::exchange(is_first, false); });
}

std::string titled_words(std::string_view text) {
  return changed(text, [is_first = true](char32_t c) mutable {
    const bool separates =
        is_python_space(c) || c == '-' || c == '(' || c == '[' || c == '{' || c == '<';
    return std::exchange(is_first, separates);
  });
}

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_spaces(std::string_view text) {
  return !text.empty() && tokenizers::spaces_at_start(text, is_python_space) == text.size();
}

size_t end_of_first_word(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const tokenizers::CodePoint c = tokenizers::whole_code_point_at(text, at);
    if (is_python_space(c.value)) break;
    at += c.bytes;
  }
  return at;
}

size_t start_of_last_word(std::string_view text) {
  size_t at = text.size();
  while (at > 0) {
    const tokenizers::CodePoint c = tokenizers::code_point_before(text, at);
    if (is_python_space(c.value)) break;
    at -= c.bytes;
  }
  return at;
}

}  // namespace fp8train::jinja
