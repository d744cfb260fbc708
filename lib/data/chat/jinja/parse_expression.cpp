#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "data/chat/jinja/parser.h"

namespace fp8train::jinja {
namespace {

/// The levels of what a node is made of.
struct Deepest {
  int32_t depth = 0;

  void see(const ExpressionPtr& part) {
    if (part) depth = std::max(depth, part->depth);
  }
  void see(const std::vector<Argument>& arguments) {
    for (const Argument& argument : arguments) see(argument.value);
  }
  void operator()(const Literal&) {}
  void operator()(const Name&) {}
  void operator()(const Items& node) {
    for (const ExpressionPtr& item : node.items) see(item);
  }
  void operator()(const Pairs& node) {
    for (const auto& [key, value] : node.pairs) see(key), see(value);
  }
  void operator()(const Unary& node) { see(node.operand); }
  void operator()(const Binary& node) { see(node.left), see(node.right); }
  void operator()(const Concat& node) {
    for (const ExpressionPtr& part : node.parts) see(part);
  }
  void operator()(const Compare& node) {
    see(node.first);
    for (const auto& [op, part] : node.rest) see(part);
  }
  void operator()(const Conditional& node) {
    see(node.condition), see(node.value), see(node.otherwise);
  }
  void operator()(const Attribute& node) { see(node.object); }
  void operator()(const Item& node) { see(node.object), see(node.index); }
  void operator()(const Slice& node) {
    see(node.object), see(node.begin), see(node.end), see(node.step);
  }
  void operator()(const Call& node) { see(node.callee), see(node.arguments); }
  void operator()(const Filter& node) { see(node.input), see(node.arguments); }
  void operator()(const Test& node) { see(node.input), see(node.arguments); }
};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

}  // namespace

ExpressionPtr ExpressionParser::make(Expression::Node node, int32_t line) const {
  Deepest deepest;
  std::visit(deepest, node);
  if (deepest.depth >= kMaxDepth) {
    reader_.fail_at(line, fmt::format("an expression has more than {} levels", kMaxDepth));
  }
  return std::make_unique<const Expression>(Expression{std::move(node), line, deepest.depth + 1});
}

ExpressionPtr ExpressionParser::expression(bool takes_if) {
  if (++depth_ > kMaxDepth) {
    reader_.fail_at(reader_.line(),
                    fmt::format("an expression has more than {} levels", kMaxDepth));
  }
  const int32_t line = reader_.line();
  ExpressionPtr value = either();
  while (takes_if && reader_.skip_name("if")) {
    ExpressionPtr condition = either();
    ExpressionPtr otherwise = reader_.skip_name("else") ? expression() : nullptr;
    value = make(Conditional{std::move(condition), std::move(value), std::move(otherwise)}, line);
  }
  --depth_;
  return value;
}

bool ExpressionParser::ends_tuple() const {
  return reader_.is(TokenKind::block_end) || reader_.is(TokenKind::print_end) ||
         reader_.is_symbol(")") || reader_.is_symbol("=") || reader_.is_name("recursive");
}

ExpressionPtr ExpressionParser::rest_of_tuple(ExpressionPtr first, int32_t line, bool takes_if) {
  if (!reader_.is_symbol(",")) return first;
  Items items{{}, true};
  items.items.push_back(std::move(first));
  while (reader_.skip_symbol(",")) {
    if (ends_tuple()) break;
    items.items.push_back(expression(takes_if));
  }
  return make(std::move(items), line);
}

ExpressionPtr ExpressionParser::tuple(bool takes_if) {
  const int32_t line = reader_.line();
  ExpressionPtr first = expression(takes_if);
  return rest_of_tuple(std::move(first), line, takes_if);
}

ExpressionPtr ExpressionParser::either() {
  const int32_t line = reader_.line();
  ExpressionPtr left = both();
  while (reader_.skip_name("or")) left = make(Binary{"or", std::move(left), both()}, line);
  return left;
}

ExpressionPtr ExpressionParser::both() {
  const int32_t line = reader_.line();
  ExpressionPtr left = negated();
  while (reader_.skip_name("and")) left = make(Binary{"and", std::move(left), negated()}, line);
  return left;
}

ExpressionPtr ExpressionParser::negated() {
  const int32_t line = reader_.line();
  int32_t count = 0;
  while (reader_.skip_name("not")) ++count;
  ExpressionPtr value = comparison();
  for (; count > 0; --count) value = make(Unary{"not", std::move(value)}, line);
  return value;
}

ExpressionPtr ExpressionParser::comparison() {
  const int32_t line = reader_.line();
  Compare compare{sum(), {}};
  for (;;) {
    if (reader_.is(TokenKind::symbol) &&
        is_one_of(reader_.now().text, {"==", "!=", "<", "<=", ">", ">="})) {
      const std::string op = reader_.take().text;
      compare.rest.emplace_back(op, sum());
    } else if (reader_.skip_name("in")) {
      compare.rest.emplace_back("in", sum());
    } else if (reader_.is_name("not") && reader_.after().kind == TokenKind::name &&
               reader_.after().text == "in") {
      reader_.take();
      reader_.take();
      compare.rest.emplace_back("not in", sum());
    } else {
      break;
    }
  }
  if (compare.rest.empty()) return std::move(compare.first);
  return make(std::move(compare), line);
}

ExpressionPtr ExpressionParser::sum() {
  const int32_t line = reader_.line();
  ExpressionPtr left = concatenation();
  while (reader_.is_symbol("+") || reader_.is_symbol("-")) {
    std::string op = reader_.take().text;
    left = make(Binary{std::move(op), std::move(left), concatenation()}, line);
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  const int32_t line = reader_.line();
  ExpressionPtr first = product();
  if (!reader_.is_symbol("~")) return first;
  Concat concat;
  concat.parts.push_back(std::move(first));
  while (reader_.skip_symbol("~")) concat.parts.push_back(product());
  return make(std::move(concat), line);
}

ExpressionPtr ExpressionParser::product() {
  const int32_t line = reader_.line();
  ExpressionPtr left = power();
  while (reader_.is(TokenKind::symbol) && is_one_of(reader_.now().text, {"*", "/", "//", "%"})) {
    std::string op = reader_.take().text;
    left = make(Binary{std::move(op), std::move(left), power()}, line);
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  const int32_t line = reader_.line();
  ExpressionPtr left = unary(true);
  while (reader_.skip_symbol("**")) {
    left = make(Binary{"**", std::move(left), unary(true)}, line);
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool takes_filters) {
  const int32_t line = reader_.line();
  std::string signs;
  while (reader_.is_symbol("-") || reader_.is_symbol("+")) signs += reader_.take().text;
  ExpressionPtr value = with_postfixes(primary());
  if (takes_filters && signs.empty()) return with_filters(std::move(value));
  std::reverse(signs.begin(), signs.end());
  for (const char sign : signs) {
    value = with_postfixes(make(Unary{std::string(1, sign), std::move(value)}, line));
  }
  return takes_filters ? with_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const int32_t line = reader_.line();
  switch (reader_.now().kind) {
    case TokenKind::name:
      return name();
    case TokenKind::string: {
      std::string text;
      while (reader_.is(TokenKind::string)) text += reader_.take().text;
      return make(Literal{Value::text(std::move(text))}, line);
    }
    case TokenKind::integer: {
      const std::string text = reader_.take().text;
      int64_t number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc())
        reader_.fail_at(line, fmt::format("{} has more than 64 bits", text));
      return make(Literal{Value(number)}, line);
    }
    case TokenKind::real:
      return make(Literal{Value(std::strtod(reader_.take().text.c_str(), nullptr))}, line);
    default:
      break;
  }
  if (reader_.skip_symbol("(")) return in_parentheses();
  if (reader_.skip_symbol("[")) return list();
  if (reader_.skip_symbol("{")) return dict();
  reader_.fail("expected a value");
}

ExpressionPtr ExpressionParser::name() {
  const int32_t line = reader_.line();
  std::string text = reader_.take().text;
  if (text == "true" || text == "True") return make(Literal{Value(true)}, line);
  if (text == "false" || text == "False") return make(Literal{Value(false)}, line);
  if (text == "none" || text == "None") return make(Literal{Value::none()}, line);
  return make(Name{std::move(text)}, line);
}

ExpressionPtr ExpressionParser::in_parentheses() {
  const int32_t line = reader_.line();
  if (reader_.skip_symbol(")")) return make(Items{{}, true}, line);
  ExpressionPtr value = tuple();
  reader_.expect_symbol(")");
  return value;
}

ExpressionPtr ExpressionParser::list() {
  const int32_t line = reader_.line();
  Items items;
  while (!reader_.is_symbol("]")) {
    if (!items.items.empty()) reader_.expect_symbol(",");
    if (reader_.is_symbol("]")) break;
    items.items.push_back(expression());
  }
  reader_.expect_symbol("]");
  return make(std::move(items), line);
}

ExpressionPtr ExpressionParser::dict() {
  const int32_t line = reader_.line();
  Pairs dict;
  while (!reader_.is_symbol("}")) {
    if (!dict.pairs.empty()) reader_.expect_symbol(",");
    if (reader_.is_symbol("}")) break;
    ExpressionPtr key = expression();
    reader_.expect_symbol(":");
    dict.pairs.emplace_back(std::move(key), expression());
  }
  reader_.expect_symbol("}");
  return make(std::move(dict), line);
}

ExpressionPtr ExpressionParser::with_postfixes(ExpressionPtr value) {
  for (;;) {
    const int32_t line = reader_.line();
    if (reader_.is_symbol(".") || reader_.is_symbol("[")) {
      value = subscript(std::move(value));
    } else if (reader_.is_symbol("(")) {
      value = make(Call{std::move(value), arguments()}, line);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::with_filters(ExpressionPtr value) {
  for (;;) {
    const int32_t line = reader_.line();
    if (reader_.is_symbol("|")) {
      value = filter(std::move(value));
    } else if (reader_.is_name("is")) {
      value = test(std::move(value));
    } else if (reader_.is_symbol("(")) {
      value = make(Call{std::move(value), arguments()}, line);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const int32_t line = reader_.line();
  if (reader_.skip_symbol(".")) {
    if (reader_.is(TokenKind::integer)) return make(Item{std::move(object), primary()}, line);
    return make(Attribute{std::move(object), reader_.expect_any_name("the name of an attribute")},
                line);
  }
  reader_.expect_symbol("[");
  const auto part = [&]() -> ExpressionPtr {
    const bool is_left_out = reader_.is_symbol(":") || reader_.is_symbol("]");
    return is_left_out ? nullptr : expression();
  };
  ExpressionPtr begin = part();
  if (!reader_.skip_symbol(":")) {
    if (!begin) reader_.fail("expected an index");
    reader_.expect_symbol("]");
    return make(Item{std::move(object), std::move(begin)}, line);
  }
  ExpressionPtr end = part();
  ExpressionPtr step = reader_.skip_symbol(":") ? part() : nullptr;
  reader_.expect_symbol("]");
  return make(Slice{std::move(object), std::move(begin), std::move(end), std::move(step)}, line);
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr input) {
  const int32_t line = reader_.line();
  reader_.expect_symbol("|");
  std::string name = reader_.expect_any_name("the name of a filter");
  std::vector<Argument> given = reader_.is_symbol("(") ? arguments() : std::vector<Argument>();
  return make(Filter{std::move(input), std::move(name), std::move(given)}, line);
}

ExpressionPtr ExpressionParser::block_filter() {
  const int32_t line = reader_.line();
  std::string name = reader_.expect_any_name("the name of a filter");
  std::vector<Argument> given = reader_.is_symbol("(") ? arguments() : std::vector<Argument>();
  ExpressionPtr value = make(Filter{nullptr, std::move(name), std::move(given)}, line);
  while (reader_.is_symbol("|")) value = filter(std::move(value));
  return value;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr input) {
  const int32_t line = reader_.line();
  reader_.expect_name("is");
  const bool is_negated = reader_.skip_name("not");
  Test node{std::move(input), reader_.expect_any_name("the name of a test"), {}};
  const TokenKind kind = reader_.now().kind;
  const bool is_word =
      kind == TokenKind::name &&
      !is_one_of(reader_.now().text, {"else", "or", "and", "if", "is", "in", "not"});
  if (reader_.is_symbol("(")) {
    node.arguments = arguments();
  } else if (is_word || kind == TokenKind::string || kind == TokenKind::integer ||
             kind == TokenKind::real || reader_.is_symbol("[") || reader_.is_symbol("{")) {
    node.arguments.push_back({"", with_postfixes(primary())});
  }
  ExpressionPtr value = make(std::move(node), line);
  return is_negated ? make(Unary{"not", std::move(value)}, line) : std::move(value);
}

std::vector<Argument> ExpressionParser::arguments() {
  reader_.expect_symbol("(");
  std::vector<Argument> given;
  while (!reader_.is_symbol(")")) {
    if (!given.empty()) reader_.expect_symbol(",");
    if (reader_.is_symbol(")")) break;
    Argument argument;
    if (reader_.is(TokenKind::name) && reader_.after().kind == TokenKind::symbol &&
        reader_.after().text == "=") {
      argument.name = reader_.take().text;
      reader_.take();
    } else if (reader_.is_symbol("*") || reader_.is_symbol("**")) {
      argument.name = reader_.take().text;
    } else if (!given.empty() && !given.back().name.empty()) {
      reader_.fail("an argument without a name follows one with a name");
    }
    argument.value = expression();
    given.push_back(std::move(argument));
  }
  reader_.expect_symbol(")");
  return given;
}

}  // namespace fp8train::jinja
