#include "data/chat/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "data/chat/jinja/text.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace {

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string with_line_feeds(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();  // keep_trailing_newline is off
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where)
      : where_(where), source_(with_line_feeds(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) read_text();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw ConfigError(fmt::format("{}:{}: {}", where_, line_, message));
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  std::string_view take(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    line_ += static_cast<int32_t>(std::count(taken.begin(), taken.end(), '\n'));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  bool skip(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) return false;
    take(prefix.size());
    return true;
  }
  void skip_spaces() { take(tokenizers::spaces_at_start(rest_, is_python_space)); }

  /// Text up to the next mark, and that mark.
  void read_text() {
    const size_t at = next_mark();
    std::string_view text = rest_.substr(0, at);
    if (at == rest_.size()) {
      if (!text.empty()) add(TokenKind::data, std::string(text));
      take(at);
      return;
    }
    const char mark = rest_[at + 1];
    const char control = at + 2 < rest_.size() ? rest_[at + 2] : ' ';
    add_data(text, control, mark != '{');
    take(at + 2);
    if (control == '-' || control == '+') take(1);
    if (mark == '#') {
      read_comment();
    } else if (mark == '{') {
      add(TokenKind::print_begin, "{{");
      read_expression(TokenKind::print_end, "}}");
    } else if (!read_raw()) {
      add(TokenKind::block_begin, "{%");
      read_expression(TokenKind::block_end, "%}");
    }
  }

  size_t next_mark() const {
    for (size_t at = rest_.find('{'); at != std::string_view::npos; at = rest_.find('{', at + 1)) {
      if (at + 1 < rest_.size() && std::string_view("{%#").find(rest_[at + 1]) < 3) return at;
    }
    return rest_.size();
  }

  /// The text in front of a mark whose third byte is `control`.
  void add_data(std::string_view text, char control, bool is_block) {
    if (control == '-') {
      text = text.substr(0, tokenizers::without_spaces_at_end(text, is_python_space));
    } else if (control != '+' && is_block) {
      const size_t feed = text.rfind('\n');
      const size_t line = feed == std::string_view::npos ? 0 : feed + 1;
      const bool starts = feed != std::string_view::npos || at_line_start_;
      const std::string_view indent = text.substr(line);
      if (starts && tokenizers::spaces_at_start(indent, is_python_space) == indent.size()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(TokenKind::data, std::string(text));
  }

  /// Takes "%}" with what trim_blocks and a minus in front of it take. False if it is not next.
  bool skip_end(std::string_view end, bool trims) {
    const size_t before = rest_.size();
    const char* begin = rest_.data();
    const bool minus = rest_.starts_with('-') && rest_.substr(1).starts_with(end);
    const bool plus = trims && rest_.starts_with('+') && rest_.substr(1).starts_with(end);
    if (minus || plus) take(1);
    if (!skip(end)) return false;
    if (minus) {
      skip_spaces();
    } else if (trims && !plus) {
      skip("\n");
    }
    at_line_start_ = begin[before - rest_.size() - 1] == '\n';
    return true;
  }

  void read_comment() {
    while (!rest_.empty()) {
      if (skip_end("#}", true)) return;
      take(1);
    }
    fail("a comment {# has no end #}");
  }

  /// {% raw %}: all up to {% endraw %} is text.
  bool read_raw() {
    const std::string_view before = rest_;
    const int32_t line = line_;
    skip_spaces();
    if (skip("raw")) {
      skip_spaces();
      if (skip_end("%}", false)) {
        read_raw_text();
        return true;
      }
    }
    rest_ = before;
    line_ = line;
    return false;
  }

  void read_raw_text() {
    for (size_t at = rest_.find("{%"); at != std::string_view::npos;
         at = rest_.find("{%", at + 2)) {
      const std::string_view text = rest_.substr(0, at);
      std::string_view mark = rest_.substr(at + 2);
      const char control = mark.empty() ? ' ' : mark.front();
      if (control == '-' || control == '+') mark.remove_prefix(1);
      mark.remove_prefix(tokenizers::spaces_at_start(mark, is_python_space));
      if (!mark.starts_with("endraw")) continue;
      add_data(text, control, true);
      take(rest_.size() - mark.size() + std::string_view("endraw").size());
      skip_spaces();
      if (!skip_end("%}", true)) fail("'endraw' is not followed by %}");
      return;
    }
    fail("{% raw %} has no {% endraw %}");
  }

  /// Tokens up to the end of a mark, which may not lie within brackets.
  void read_expression(TokenKind end_kind, std::string_view end) {
    std::string open;
    for (;;) {
      skip_spaces();
      if (rest_.empty()) fail(fmt::format("expected {}, found the template's end", end));
      if (open.empty() && skip_end(end, end_kind == TokenKind::block_end)) {
        add(end_kind, std::string(end));
        return;
      }
      const char c = rest_.front();
      if (is_name_start(c)) {
        add(TokenKind::name, std::string(take(name_length())));
      } else if (is_digit(c)) {
        read_number();
      } else if (c == '\'' || c == '"') {
        read_string();
      } else {
        read_symbol(open);
      }
    }
  }

  size_t name_length() const {
    size_t length = 1;
    while (length < rest_.size() && (is_name_start(rest_[length]) || is_digit(rest_[length]))) {
      ++length;
    }
    return length;
  }

  void read_number() {
    size_t length = 0;
    const auto digits = [&] {
      while (length < rest_.size() && (is_digit(rest_[length]) || rest_[length] == '_')) ++length;
    };
    const auto digit_at = [&](size_t at) { return at < rest_.size() && is_digit(rest_[at]); };
    digits();
    bool is_real = false;
    if (length < rest_.size() && rest_[length] == '.' && digit_at(length + 1)) {
      is_real = true;
      ++length;
      digits();
    }
    if (length < rest_.size() && (rest_[length] | 0x20) == 'e') {
      const bool has_sign =
          length + 1 < rest_.size() && (rest_[length + 1] == '-' || rest_[length + 1] == '+');
      if (digit_at(length + (has_sign ? 2 : 1))) {
        is_real = true;
        length += has_sign ? 2 : 1;
        digits();
      }
    }
    std::string text(take(length));
    std::erase(text, '_');
    add(is_real ? TokenKind::real : TokenKind::integer, std::move(text));
  }

  void read_symbol(std::string& open) {
    constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingle = "+-/*%~[](){}<>=.:|,;", kOpen = "([{", kClose = ")]}";
    for (const std::string_view pair : kPairs) {
      if (skip(pair)) return add(TokenKind::symbol, std::string(pair));
    }
    const char c = rest_.front();
    if (kSingle.find(c) == std::string_view::npos) {
      fail(fmt::format(
          "unexpected character '{}'",
          printable(rest_.substr(0, std::max<size_t>(1, code_point_length(rest_, 0))))));
    }
    if (kOpen.find(c) != std::string_view::npos) {
      open += c;
    } else if (const size_t which = kClose.find(c); which != std::string_view::npos) {
      if (open.empty()) fail(fmt::format("unexpected '{}'", c));
      if (open.back() != kOpen[which]) {
        fail(fmt::format("unexpected '{}', expected '{}'", c, kClose[kOpen.find(open.back())]));
      }
      open.pop_back();
    }
    add(TokenKind::symbol, std::string(take(1)));
  }

  void read_string() {
    const char quote = rest_.front();
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail("a text in quotes has no end");
    const std::string_view text = rest_.substr(1, end - 1);
    std::string value;
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '\\') {
        value += text[at++];
      } else {
        at += read_escape(text.substr(at), value);
      }
    }
    const int32_t line = line_;
    take(end + 1);
    tokens_.push_back({TokenKind::string, std::move(value), line});
  }

  /// Appends what an escape of Python stands for; returns its length.
  size_t read_escape(std::string_view text, std::string& value) const {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = text[1];
    if (const size_t which = kLetters.find(c); which != std::string_view::npos) {
      value += kValues[which];
      return 2;
    }
    if (c == '\n') return 2;  // the line continues
    if (c >= '0' && c <= '7') {
      size_t length = 2;
      while (length < 4 && length < text.size() && text[length] >= '0' && text[length] <= '7') {
        ++length;
      }
      append_code(text.substr(1, length - 1), 8, value);
      return length;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      append_code(text.substr(2, digits), 16, value, digits);
      return 2 + digits;
    }
    if (c == 'N') fail("characters by name (\\N{...}) are not supported; write the character");
    value += '\\';  // unknown escapes stay
    return 1;
  }

  void append_code(std::string_view digits, int base, std::string& value, size_t wanted = 0) const {
    uint32_t code = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    const bool whole = error == std::errc() && end == digits.data() + digits.size() &&
                       (wanted == 0 || digits.size() == wanted);
    if (!whole || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail(fmt::format("'{}' in a text is not the code of a character", printable(digits)));
    }
    tokenizers::append_utf8(value, code);
  }

  const std::string& where_;
  std::string source_;
  std::string_view rest_;
  int32_t line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, const std::string& where) {
  if (!is_utf8(source)) throw ConfigError(where + ": not UTF-8");
  return Lexer(source, where).run();
}

void TokenReader::fail_at(int32_t line, const std::string& message) const {
  throw ConfigError(fmt::format("{}:{}: {}", where_, line, message));
}

void TokenReader::fail(const std::string& message) const {
  const std::string found = is(TokenKind::end)
                                ? "the template's end"
                                : fmt::format("'{}'", printable(now().text.substr(0, 40)));
  fail_at(line(), fmt::format("{}, found {}", message, found));
}

void TokenReader::expect_symbol(std::string_view text) {
  if (!skip_symbol(text)) fail(fmt::format("expected '{}'", text));
}

void TokenReader::expect_name(std::string_view text) {
  if (!skip_name(text)) fail(fmt::format("expected '{}'", text));
}

std::string TokenReader::expect_any_name(std::string_view what) {
  if (!is(TokenKind::name)) fail(fmt::format("expected {}", what));
  return take().text;
}

void TokenReader::expect_block_end() {
  if (!is(TokenKind::block_end)) fail("expected %}");
  take();
}

}  // namespace fp8train::jinja
