#include "data/chat/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/chat/jinja/text.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_digit_or_mark(char c) {
  return is_digit(c) || c == '_';
}
bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit_or_mark(c);
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

  void add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  /// The byte at an index of the rest, or 0.
  char at(size_t index) const { return index < rest_.size() ? rest_[index] : '\0'; }

  /// The index from `from` on of the first byte for which this does not hold.
  size_t end_of(bool (*holds)(char), size_t from) const {
    while (from < rest_.size() && holds(rest_[from])) ++from;
    return from;
  }

  std::string_view take(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    line_ += static_cast<int32_t>(std::count(taken.begin(), taken.end(), '\n'));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  bool skip(std::string_view prefix) {
    return rest_.starts_with(prefix) && (take(prefix.size()), true);
  }
  void skip_spaces() { take(tokenizers::spaces_at_start(rest_, is_python_space)); }

  /// Text up to the next mark, and that mark.
  void read_text() {
    size_t end = rest_.find('{');
    while (end < rest_.size() && at(end + 1) != '{' && at(end + 1) != '%' && at(end + 1) != '#') {
      end = rest_.find('{', end + 1);
    }
    if (end >= rest_.size()) {
      add(TokenKind::data, rest_);
      take(rest_.size());
      return;
    }
    const char mark = at(end + 1), control = at(end + 2);
    add_data(rest_.substr(0, end), control, mark != '{');
    take(end + (control == '-' || control == '+' ? 3 : 2));
    if (mark == '#') {
      read_comment();
    } else if (mark == '{') {
      read_expression("{{", "}}");
    } else if (!read_raw()) {
      read_expression("{%", "%}");
    }
  }

  /// The text in front of a mark whose third byte is `control`.
  void add_data(std::string_view text, char control, bool is_block) {
    if (control == '-') {
      text = text.substr(0, tokenizers::without_spaces_at_end(text, is_python_space));
    } else if (control != '+' && is_block) {
      const size_t line = text.rfind('\n') + 1;  // 0 where there is none
      const std::string_view indent = text.substr(line);
      if ((line > 0 || at_line_start_) &&
          tokenizers::spaces_at_start(indent, is_python_space) == indent.size()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(TokenKind::data, text);
  }

  /// Takes "%}" with what trim_blocks and a minus in front of it take. False if it is not next.
  bool skip_end(std::string_view end, bool trims) {
    const char control = at(0);
    const bool has_control = control == '-' || (control == '+' && trims);
    const bool is_controlled = has_control && rest_.substr(1).starts_with(end);
    if (!is_controlled && !rest_.starts_with(end)) return false;
    std::string_view taken = rest_;
    take(end.size() + (is_controlled ? 1 : 0));
    if (is_controlled && control == '-') {
      skip_spaces();
    } else if (trims && !is_controlled) {
      skip("\n");
    }
    taken.remove_suffix(rest_.size());
    at_line_start_ = taken.back() == '\n';
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
    for (size_t end = rest_.find("{%"); end != std::string_view::npos;
         end = rest_.find("{%", end + 2)) {
      const char control = at(end + 2);
      std::string_view mark = rest_.substr(end + (control == '-' || control == '+' ? 3 : 2));
      mark.remove_prefix(tokenizers::spaces_at_start(mark, is_python_space));
      if (!mark.starts_with("endraw")) continue;
      add_data(rest_.substr(0, end), control, true);
      take(rest_.size() - mark.size());
      skip("endraw");
      skip_spaces();
      if (!skip_end("%}", true)) fail("'endraw' is not followed by %}");
      return;
    }
    fail("{% raw %} has no {% endraw %}");
  }

  /// Tokens up to the end of a mark, which may not lie within brackets.
  void read_expression(std::string_view begin, std::string_view end) {
    add(TokenKind::symbol, begin);
    std::string open;
    for (;;) {
      skip_spaces();
      if (rest_.empty()) fail(fmt::format("expected {}, found the template's end", end));
      if (open.empty() && skip_end(end, end == "%}")) return add(TokenKind::symbol, end);
      if (is_digit(at(0))) {
        read_number();
      } else if (is_of_name(at(0))) {
        add(TokenKind::name, take(end_of(is_of_name, 0)));
      } else if (at(0) == '\'' || at(0) == '"') {
        read_string();
      } else {
        read_symbol(open);
      }
    }
  }

  void read_number() {
    const size_t whole = end_of(is_digit_or_mark, 0);
    const bool has_point = at(whole) == '.' && is_digit(at(whole + 1));
    size_t end = has_point ? end_of(is_digit_or_mark, whole + 1) : whole;
    if (at(end) == 'e' || at(end) == 'E') {
      const size_t digits = end + (at(end + 1) == '-' || at(end + 1) == '+' ? 2 : 1);
      if (is_digit(at(digits))) end = end_of(is_digit_or_mark, digits);
    }
    std::string text(take(end));
    std::erase(text, '_');
    add(end == whole ? TokenKind::integer : TokenKind::real, text);
  }

  void read_symbol(std::string& open) {
    constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingle = "+-/*%~[](){}<>=.:|,;", kOpen = "([{", kClose = ")]}";
    for (const std::string_view pair : kPairs) {
      if (skip(pair)) return add(TokenKind::symbol, pair);
    }
    const char c = at(0);
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
    add(TokenKind::symbol, take(1));
  }

  void read_string() {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != rest_[0]) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail("a text in quotes has no end");
    const std::string_view text = rest_.substr(1, end - 1);
    std::string value;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        value += text[i++];
      } else {
        i += read_escape(text.substr(i), value);
      }
    }
    add(TokenKind::string, value);
    take(end + 1);
  }

  /// Appends the text of an escape of Python; returns its length.
  size_t read_escape(std::string_view text, std::string& value) const {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = text[1];
    if (const size_t which = kLetters.find(c); which != std::string_view::npos) {
      value += kValues[which];
      return 2;
    }
    if (c == '\n') return 2;  // the line continues
    if (c >= '0' && c <= '7') {
      const size_t end = std::min({text.find_first_not_of("01234567", 1), text.size(), size_t{4}});
      append_code(text.substr(1, end - 1), 8, value);
      return end;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      if (text.size() < digits + 2) refuse_code(text.substr(2));
      append_code(text.substr(2, digits), 16, value);
      return 2 + digits;
    }
    if (c == 'N') fail("characters by name (\\N{...}) are not supported; write the character");
    value += '\\';  // unknown escapes stay
    return 1;
  }

  void append_code(std::string_view digits, int base, std::string& value) const {
    uint32_t code = 0;
    const char* const end = digits.data() + digits.size();
    const bool is_whole = std::from_chars(digits.data(), end, code, base).ptr == end;
    if (!is_whole || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) refuse_code(digits);
    tokenizers::append_utf8(value, code);
  }

  [[noreturn]] void refuse_code(std::string_view digits) const {
    fail(fmt::format("'{}' in a text is not the code of a character", printable(digits)));
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

}  // namespace fp8train::jinja
