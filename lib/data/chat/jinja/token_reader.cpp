#include <fmt/format.h>

#include "base/error.h"
#include "data/chat/jinja/parser.h"
#include "data/utf8.h"

namespace fp8train::jinja {

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
