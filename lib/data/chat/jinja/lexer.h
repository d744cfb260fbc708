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
  string,  ///< its value, escapes read
  symbol,  ///< an operator, a bracket or a mark: {% %} {{ }}
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  int32_t line = 0;  ///< from 1
};

/// Returns the tokens, of which the last is `end`. Throws ConfigError "WHERE:LINE: ...".
std::vector<Token> tokens_of(std::string_view source, const std::string& where);

}  // namespace fp8train::jinja
