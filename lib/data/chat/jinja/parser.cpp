#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "data/chat/jinja/ast.h"
#include "data/chat/jinja/lexer.h"

namespace fp8train::jinja {
namespace {

constexpr size_t kMaxBytes = 1U << 20;
constexpr int32_t kMaxDepth = 100;

using Names = std::initializer_list<std::string_view>;

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

/// Reads statements and their expressions.
class Parser {
 public:
  explicit Parser(TokenReader reader) : reader_(std::move(reader)) {}

  Body run() {
    Body body = read_body({});
    if (!reader_.is(TokenKind::end)) reader_.fail("expected a statement");
    return body;
  }

 private:
  /// Up to the template's end, or a block that begins with one of `ends`, of which only {% is read.
  Body read_body(Names ends) {
    if (++depth_ > kMaxDepth) {
      reader_.fail_at(reader_.line(), fmt::format("more than {} blocks in each other", kMaxDepth));
    }
    Body body;
    while (!reader_.is(TokenKind::end)) {
      const int32_t line = reader_.line();
      const Token token = reader_.take();
      if (token.kind == TokenKind::data) {
        body.push_back({Data{token.text}, line});
      } else if (token.kind == TokenKind::print_begin) {
        body.push_back({Print{tuple()}, line});
        if (!reader_.is(TokenKind::print_end)) reader_.fail("expected }}");
        reader_.take();
      } else {
        const bool is_end = std::any_of(ends.begin(), ends.end(),
                                        [&](std::string_view end) { return reader_.is_name(end); });
        if (is_end) break;
        body.push_back(read_statement(line));
      }
    }
    if (ends.size() > 0 && reader_.is(TokenKind::end)) {
      reader_.fail(fmt::format("expected {{% {} %}}", *(ends.end() - 1)));
    }
    --depth_;
    return body;
  }

  /// Up to {% end %}, which is read.
  Body read_body_to(std::string_view end) {
    reader_.expect_block_end();
    Body body = read_body({end});
    reader_.expect_name(end);
    reader_.expect_block_end();
    return body;
  }

  Statement read_statement(int32_t line) {
    const std::string name = reader_.expect_any_name("the name of a statement");
    if (name == "for") return {read_for(), line};
    if (name == "if") return {read_if(), line};
    if (name == "set") return read_set(line);
    if (name == "macro") return {read_macro(), line};
    if (name == "call") return {read_call(), line};
    if (name == "with") return {read_with(), line};
    if (name == "generation") return {Generation{read_body_to("endgeneration")}, line};
    if (name == "filter") {
      ExpressionPtr filter = block_filter();
      return {FilterBlock{std::move(filter), read_body_to("endfilter")}, line};
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) reader_.fail_at(line, fmt::format("'{}' outside of a for", name));
      reader_.expect_block_end();
      return name == "break" ? Statement{Break{}, line} : Statement{Continue{}, line};
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      reader_.fail_at(line, fmt::format("unexpected '{}'", name));
    }
    reader_.fail_at(line, fmt::format("the statement '{}' is not supported", name));
  }

  /// x, or x, y, or (x, y), or namespace.x.
  Target read_target(bool takes_attribute) {
    Target target;
    const bool in_parentheses = reader_.skip_symbol("(");
    do {
      for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
        if (reader_.is_name(constant)) reader_.fail("expected a name to assign to");
      }
      target.names.push_back(reader_.expect_any_name("a name to assign to"));
      if (takes_attribute && target.names.size() == 1 && reader_.skip_symbol(".")) {
        target.attribute = reader_.expect_any_name("the name of an attribute");
        return target;
      }
      if (!reader_.skip_symbol(",")) break;
      target.is_tuple = true;
    } while (reader_.is(TokenKind::name) && !reader_.is_name("in"));
    if (in_parentheses) reader_.expect_symbol(")");
    return target;
  }

  For read_for() {
    For loop;
    loop.target = read_target(false);
    reader_.expect_name("in");
    loop.items = tuple(false);
    if (reader_.skip_name("if")) loop.condition = expression();
    if (reader_.is_name("recursive")) reader_.fail("a recursive for is not supported");
    reader_.expect_block_end();
    ++loops_;
    loop.body = read_body({"else", "endfor"});
    --loops_;
    if (reader_.skip_name("else")) {
      reader_.expect_block_end();
      loop.otherwise = read_body({"endfor"});
    }
    reader_.expect_name("endfor");
    reader_.expect_block_end();
    return loop;
  }

  If read_if() {
    If node;
    do {
      ExpressionPtr condition = tuple();
      reader_.expect_block_end();
      Body body = read_body({"elif", "else", "endif"});
      node.branches.emplace_back(std::move(condition), std::move(body));
    } while (reader_.skip_name("elif"));
    if (reader_.skip_name("else")) {
      reader_.expect_block_end();
      node.otherwise = read_body({"endif"});
    }
    reader_.expect_name("endif");
    reader_.expect_block_end();
    return node;
  }

  Statement read_set(int32_t line) {
    Target target = read_target(true);
    if (reader_.skip_symbol("=")) {
      Set set{std::move(target), tuple()};
      reader_.expect_block_end();
      return {std::move(set), line};
    }
    ExpressionPtr filter = reader_.skip_symbol("|") ? block_filter() : nullptr;
    return {SetBlock{std::move(target), std::move(filter), read_body_to("endset")}, line};
  }

  /// (a, b=1); nothing where there are no parentheses.
  std::vector<std::pair<std::string, ExpressionPtr>> read_parameters() {
    std::vector<std::pair<std::string, ExpressionPtr>> parameters;
    if (!reader_.skip_symbol("(")) return parameters;
    while (!reader_.is_symbol(")")) {
      if (!parameters.empty()) reader_.expect_symbol(",");
      std::string name = reader_.expect_any_name("the name of a parameter");
      ExpressionPtr value = reader_.skip_symbol("=") ? expression() : nullptr;
      if (!value && !parameters.empty() && parameters.back().second) {
        reader_.fail("a parameter without a default follows one with a default");
      }
      parameters.emplace_back(std::move(name), std::move(value));
    }
    reader_.expect_symbol(")");
    return parameters;
  }

  /// The body of a macro is in no loop.
  Macro read_macro_body(Macro macro, std::string_view end) {
    const int32_t loops = std::exchange(loops_, 0);
    macro.body = read_body_to(end);
    loops_ = loops;
    return macro;
  }

  Macro read_macro() {
    Macro macro{reader_.expect_any_name("the name of a macro"), {}, {}};
    if (!reader_.is_symbol("(")) reader_.fail("expected '('");
    macro.parameters = read_parameters();
    return read_macro_body(std::move(macro), "endmacro");
  }

  CallBlock read_call() {
    Macro caller{"caller", read_parameters(), {}};
    ExpressionPtr call = expression();
    if (!std::holds_alternative<Call>(call->node)) reader_.fail("expected a call");
    Macro whole = read_macro_body(std::move(caller), "endcall");
    return {std::make_unique<const Macro>(std::move(whole)), std::move(call)};
  }

  With read_with() {
    With node;
    while (!reader_.is(TokenKind::block_end)) {
      if (!node.values.empty()) reader_.expect_symbol(",");
      Target target = read_target(false);
      reader_.expect_symbol("=");
      node.values.emplace_back(std::move(target), expression());
    }
    node.body = read_body_to("endwith");
    return node;
  }

  ExpressionPtr make(Expression::Node node, int32_t line) const {
    Deepest deepest;
    std::visit(deepest, node);
    if (deepest.depth >= kMaxDepth) {
      reader_.fail_at(line, fmt::format("an expression has more than {} levels", kMaxDepth));
    }
    return std::make_unique<const Expression>(Expression{std::move(node), line, deepest.depth + 1});
  }

  /// An expression; `takes_if` false: up to an "if" that belongs to a statement.
  ExpressionPtr expression(bool takes_if = true) {
    if (++levels_ > kMaxDepth) {
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
    --levels_;
    return value;
  }

  bool ends_tuple() const {
    return reader_.is(TokenKind::block_end) || reader_.is(TokenKind::print_end) ||
           reader_.is_symbol(")") || reader_.is_symbol("=") || reader_.is_name("recursive");
  }

  ExpressionPtr rest_of_tuple(ExpressionPtr first, int32_t line, bool takes_if) {
    if (!reader_.is_symbol(",")) return first;
    Items items{{}, true};
    items.items.push_back(std::move(first));
    while (reader_.skip_symbol(",")) {
      if (ends_tuple()) break;
      items.items.push_back(expression(takes_if));
    }
    return make(std::move(items), line);
  }

  /// Several with commas between are a tuple, as in {% for x in 1, 2 %}.
  ExpressionPtr tuple(bool takes_if = true) {
    const int32_t line = reader_.line();
    ExpressionPtr first = expression(takes_if);
    return rest_of_tuple(std::move(first), line, takes_if);
  }

  /// Operands with operators of one rank between them, from left to right.
  ExpressionPtr binary(ExpressionPtr (Parser::*operand)(), Names operators) {
    const int32_t line = reader_.line();
    ExpressionPtr left = (this->*operand)();
    while ((reader_.is(TokenKind::name) || reader_.is(TokenKind::symbol)) &&
           is_one_of(reader_.now().text, operators)) {
      std::string op = reader_.take().text;
      left = make(Binary{std::move(op), std::move(left), (this->*operand)()}, line);
    }
    return left;
  }

  ExpressionPtr either() { return binary(&Parser::both, {"or"}); }
  ExpressionPtr both() { return binary(&Parser::negated, {"and"}); }
  ExpressionPtr sum() { return binary(&Parser::concatenation, {"+", "-"}); }
  ExpressionPtr product() { return binary(&Parser::power, {"*", "/", "//", "%"}); }
  ExpressionPtr power() { return binary(&Parser::unary, {"**"}); }

  ExpressionPtr negated() {
    const int32_t line = reader_.line();
    int32_t count = 0;
    while (reader_.skip_name("not")) ++count;
    ExpressionPtr value = comparison();
    for (; count > 0; --count) value = make(Unary{"not", std::move(value)}, line);
    return value;
  }

  ExpressionPtr comparison() {
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

  ExpressionPtr concatenation() {
    const int32_t line = reader_.line();
    ExpressionPtr first = product();
    if (!reader_.is_symbol("~")) return first;
    Concat concat;
    concat.parts.push_back(std::move(first));
    while (reader_.skip_symbol("~")) concat.parts.push_back(product());
    return make(std::move(concat), line);
  }

  ExpressionPtr unary() {
    const int32_t line = reader_.line();
    std::string signs;
    while (reader_.is_symbol("-") || reader_.is_symbol("+")) signs += reader_.take().text;
    ExpressionPtr value = with_postfixes(primary());
    std::reverse(signs.begin(), signs.end());
    for (const char sign : signs) {
      value = with_postfixes(make(Unary{std::string(1, sign), std::move(value)}, line));
    }
    return with_filters(std::move(value));
  }

  ExpressionPtr primary() {
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

  ExpressionPtr name() {
    const int32_t line = reader_.line();
    std::string text = reader_.take().text;
    if (text == "true" || text == "True") return make(Literal{Value(true)}, line);
    if (text == "false" || text == "False") return make(Literal{Value(false)}, line);
    if (text == "none" || text == "None") return make(Literal{Value::none()}, line);
    return make(Name{std::move(text)}, line);
  }

  ExpressionPtr in_parentheses() {
    const int32_t line = reader_.line();
    if (reader_.skip_symbol(")")) return make(Items{{}, true}, line);
    ExpressionPtr value = tuple();
    reader_.expect_symbol(")");
    return value;
  }

  ExpressionPtr list() {
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

  ExpressionPtr dict() {
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

  ExpressionPtr with_postfixes(ExpressionPtr value) {
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

  ExpressionPtr with_filters(ExpressionPtr value) {
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

  ExpressionPtr subscript(ExpressionPtr object) {
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

  ExpressionPtr filter(ExpressionPtr input) {
    const int32_t line = reader_.line();
    reader_.expect_symbol("|");
    std::string name = reader_.expect_any_name("the name of a filter");
    std::vector<Argument> given = reader_.is_symbol("(") ? arguments() : std::vector<Argument>();
    return make(Filter{std::move(input), std::move(name), std::move(given)}, line);
  }

  /// upper | replace("a", "b"), of the text of a block.
  ExpressionPtr block_filter() {
    const int32_t line = reader_.line();
    std::string name = reader_.expect_any_name("the name of a filter");
    std::vector<Argument> given = reader_.is_symbol("(") ? arguments() : std::vector<Argument>();
    ExpressionPtr value = make(Filter{nullptr, std::move(name), std::move(given)}, line);
    while (reader_.is_symbol("|")) value = filter(std::move(value));
    return value;
  }

  ExpressionPtr test(ExpressionPtr input) {
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

  std::vector<Argument> arguments() {
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

  TokenReader reader_;
  int32_t depth_ = 0;   ///< of statements
  int32_t levels_ = 0;  ///< of expressions
  int32_t loops_ = 0;   ///< that a `break` is within
};

}  // namespace

std::set<std::string> names_in(std::string_view source, const std::string& where) {
  std::set<std::string> names;
  for (const Token& token : tokens_of(source, where)) {
    if (token.kind == TokenKind::name) names.insert(token.text);
  }
  return names;
}

Body parse(std::string_view source, const std::string& where) {
  if (source.size() > kMaxBytes) {
    throw ConfigError(fmt::format("{}: a chat template of {} bytes, more than {}", where,
                                  source.size(), kMaxBytes));
  }
  return Parser(TokenReader(tokens_of(source, where), where)).run();
}

}  // namespace fp8train::jinja
