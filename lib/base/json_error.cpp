#include "base/json_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace fp8train {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kEndsOfWord = " \t\r\n,:]}[{\"";
constexpr size_t kLongestWord = 20;

JsonError at_byte(std::string_view text, size_t at, std::string what) {
  const std::string_view before = text.substr(0, at);
  const size_t line_break = before.rfind('\n');
  return {.line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n')),
          .column = at - (line_break == std::string_view::npos ? 0 : line_break + 1) + 1,
          .what = std::move(what)};
}

/// Where brackets and a quote are open after a prefix of the text.
struct Open {
  std::vector<size_t> brackets;
  size_t quote = std::string_view::npos;
};

Open open_after(std::string_view text) {
  Open open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (open.quote != std::string_view::npos) {
      i += c == '\\' ? 1 : 0;
      open.quote = c == '"' ? std::string_view::npos : open.quote;
    } else if (c == '"') {
      open.quote = i;
    } else if (c == '{' || c == '[') {
      open.brackets.push_back(i);
    } else if ((c == '}' || c == ']') && !open.brackets.empty()) {
      open.brackets.pop_back();
    }
  }
  return open;
}

JsonError error_at_end(std::string_view text) {
  if (text.find_first_not_of(kBlanks) == std::string_view::npos) {
    return {.what = "there is nothing in it"};
  }
  return unclosed(text).value_or(
      at_byte(text, text.size(), "the text ends where a value is missing"));
}

/// The escape of half a code point that ends shortly before `at`: "\ud83d".
std::optional<size_t> half_surrogate(std::string_view text, size_t at) {
  constexpr size_t kEscape = 6;
  const size_t begin = text.substr(0, at + 1).rfind("\\u");
  if (begin == std::string_view::npos || at - begin > 2 * kEscape) return std::nullopt;
  const auto is_half = [&](size_t escape) {
    return escape + kEscape <= text.size() &&
           (text[escape + 2] == 'd' || text[escape + 2] == 'D') && text[escape + 3] >= '8' &&
           text.substr(escape, 2) == "\\u";
  };
  if (begin >= kEscape && is_half(begin - kEscape)) return begin - kEscape;
  return is_half(begin) ? std::optional(begin) : std::nullopt;
}

const char* what_in_quotes(char c) {
  if (c == '\n') {
    return "a line break within a text (\\n, or is its second quote missing?)";
  }
  if (static_cast<unsigned char>(c) >= 0x80) {
    return "bytes that are not UTF-8";
  }
  return static_cast<unsigned char>(c) < 0x20 ? "a control character within a text"
                                              : "an unknown escape; a backslash is written \\\\";
}

/// The word that the byte is in, with what is written instead of it in JSON.
JsonError error_in_word(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && kEndsOfWord.find(text[begin - 1]) == std::string_view::npos) {
    --begin;
  }
  const size_t end = std::min(text.find_first_of(kEndsOfWord, at), text.size());
  const std::string_view word = text.substr(begin, std::min(end - begin, kLongestWord));
  const bool plain =
      std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c < 127; });
  std::string advice;
  if (word.starts_with('\'')) {
    advice = "; texts have double quotes in JSON";
  } else if (word == "None" || word == "True" || word == "False") {
    advice = "; JSON has null, true and false";
  } else if (word == "NaN" || word == "Infinity" || word == "-Infinity") {
    advice = "; JSON has no such number";
  } else if (word.starts_with("//") || word.starts_with('#')) {
    advice = "; JSON has no comments";
  }
  return at_byte(
      text, begin,
      fmt::format("unexpected {}{}", plain ? fmt::format("'{}'", word) : "bytes", advice));
}

}  // namespace

std::optional<JsonError> unclosed(std::string_view text) {
  const Open open = open_after(text);
  if (open.quote == std::string_view::npos && open.brackets.empty()) {
    return std::nullopt;
  }
  const size_t at = open.quote != std::string_view::npos ? open.quote : open.brackets.back();
  return at_byte(text, at, fmt::format("this {} is not closed before the text ends", text[at]));
}

JsonError json_error(std::string_view text, size_t byte) {
  const size_t at = byte == 0 ? 0 : byte - 1;
  if (at >= text.size()) {
    return error_at_end(text);
  }
  const Open open = open_after(text.substr(0, at));
  const char c = text[at];
  const bool in_quotes = open.quote != std::string_view::npos;
  if (const auto half = in_quotes ? half_surrogate(text, at) : std::nullopt) {
    return at_byte(text, *half, fmt::format("half of a surrogate pair, {}", text.substr(*half, 6)));
  }
  if (c == '"') {  // the text that it ends, or begins, is out of place
    return at_byte(text, in_quotes ? open.quote : at,
                   "unexpected text; is a comma or a colon missing before it?");
  }
  if (in_quotes) {
    return at_byte(text, at, what_in_quotes(c));
  }
  const size_t before = text.substr(0, at).find_last_not_of(kBlanks);
  const char last = before == std::string_view::npos ? ' ' : text[before];
  if ((c == '}' || c == ']') && last == ',') {
    return at_byte(text, before, fmt::format("a comma before {}", c));
  }
  if (open.brackets.empty() && (last == '}' || last == ']')) {
    return at_byte(text, at, "more text after the end of the value");
  }
  return kEndsOfWord.find(c) == std::string_view::npos
             ? error_in_word(text, at)
             : at_byte(text, at, fmt::format("unexpected '{}'", c));
}

std::string not_json(const std::string& where, std::string_view text, size_t byte) {
  const JsonError error = json_error(text, byte);
  return fmt::format("{}:{}:{}: not JSON: {}", where, error.line, error.column, error.what);
}

std::string plain_json_error(const std::exception& error) {
  const std::string_view what = error.what();
  const size_t end =
      what.starts_with("[json.exception.") ? what.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

}  // namespace fp8train
