#pragma once
// The tokens of a template, with white space treated as transformers sets it: trim_blocks and
// lstrip_blocks (Jinja 3, lexer.py).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train::jinja {

enum class TokenKind : uint8_t {
  data,  ///< text outside of marks
  name,
  integer,
  real,
  string,       ///< its value, escapes read
  symbol,       ///< an operator or a bracket
  block_begin,  ///< {%
  block_end,
  print_begin,  ///< {{
  print_end,
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  int32_t line = 0;  ///< from 1
};

/// Returns the tokens, of which the last is `end`. Throws ConfigError "WHERE:LINE: ...".
std::vector<Token> tokens_of(std::string_view source, const std::string& where);

/// Reads tokens in their order.
class TokenReader {
 public:
  TokenReader(std::vector<Token> tokens, const std::string& where)
      : tokens_(std::move(tokens)), where_(where) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[at_ + (at_ + 1 < tokens_.size() ? 1 : 0)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  int32_t line() const { return now().line; }

  bool is(TokenKind kind) const { return now().kind == kind; }
  bool is_symbol(std::string_view text) const {
    return is(TokenKind::symbol) && now().text == text;
  }
  bool is_name(std::string_view text) const { return is(TokenKind::name) && now().text == text; }
  bool skip_symbol(std::string_view text) { return is_symbol(text) && (take(), true); }
  bool skip_name(std::string_view text) { return is_name(text) && (take(), true); }

  void expect_symbol(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_any_name(std::string_view what);
  void expect_block_end();

  /// Throws ConfigError "WHERE:LINE: ...".
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_at(int32_t line, const std::string& message) const;

 private:
  std::vector<Token> tokens_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace fp8train::jinja
