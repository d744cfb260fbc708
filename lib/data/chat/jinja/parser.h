#pragma once
// Templates as text to trees (Jinja 3, parser.py).

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/ast.h"
#include "data/chat/jinja/lexer.h"

namespace fp8train::jinja {

/// Expressions and statements are nested at most this deeply.
inline constexpr int32_t kMaxDepth = 100;

/// Reads expressions. All functions throw ConfigError.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& reader) : reader_(reader) {}

  /// An expression; `takes_if` false: up to an "if" that belongs to a statement.
  ExpressionPtr expression(bool takes_if = true);
  /// Several with commas between are a tuple, as in {% for x in 1, 2 %}.
  ExpressionPtr tuple(bool takes_if = true);
  /// upper | replace("a", "b"), of the text of a block.
  ExpressionPtr block_filter();

 private:
  ExpressionPtr make(Expression::Node node, int32_t line) const;
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negated();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool takes_filters);
  ExpressionPtr primary();
  ExpressionPtr name();
  ExpressionPtr in_parentheses();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr with_postfixes(ExpressionPtr value);
  ExpressionPtr with_filters(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr filter(ExpressionPtr input);
  ExpressionPtr test(ExpressionPtr input);
  ExpressionPtr rest_of_tuple(ExpressionPtr first, int32_t line, bool takes_if);
  std::vector<Argument> arguments();
  bool ends_tuple() const;

  TokenReader& reader_;
  int32_t depth_ = 0;
};

/// Returns the names of a template's expressions, which may be those of its variables, without
/// reading it further. Throws as parse() does.
std::set<std::string> names_in(std::string_view source, const std::string& where);

/// Returns the statements of a template of at most 1 MiB. Throws ConfigError.
Body parse(std::string_view source, const std::string& where);

}  // namespace fp8train::jinja
