#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "data/chat/jinja/ast.h"
#include "data/chat/jinja/lexer.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace {

constexpr size_t kMaxBytes = 1U << 20;
constexpr int32_t kMaxDepth = 100;

using Names = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view text, Names all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

/// Operators of one rank, and what they make.
struct Rank {
  Form form = Form::either;
  std::array<std::string_view, 8> operators;
};
/// From those that bind least on.
constexpr Rank kRanks[] = {
    {Form::either, {"or"}},
    {Form::both, {"and"}},
    {Form::negation, {"not"}},
    {Form::compare, {"==", "!=", "<", "<=", ">", ">=", "in", "not in"}},
    {Form::arithmetic, {"+", "-"}},
    {Form::concat, {"~"}},
    {Form::arithmetic, {"*", "/", "//", "%"}},
    {Form::arithmetic, {"**"}},
};

/// Reads statements and their expressions.
class Parser {
 public:
  Parser(std::string_view source, const std::string& where)
      : tokens_(tokens_of(source, where)), where_(where) {}

  Tree run() {
    Tree tree;
    for (const Token& token : tokens_) {
      if (token.kind == TokenKind::name) tree.names.insert(token.text);
    }
    tree.body = read_body({});
    return tree;
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int32_t line() const { return now().line; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }

  bool is(TokenKind kind) const { return now().kind == kind; }
  static bool has_text(const Token& token, std::string_view text) {
    return (token.kind == TokenKind::name || token.kind == TokenKind::symbol) && token.text == text;
  }
  /// Whether this name or symbol is next.
  bool is(std::string_view text) const { return has_text(now(), text); }
  bool skip(std::string_view text) { return is(text) && (take(), true); }
  void expect(std::string_view text) {
    if (!skip(text)) fail(fmt::format("expected '{}'", text));
  }
  std::string expect_name(std::string_view what) {
    if (!is(TokenKind::name)) fail(fmt::format("expected {}", what));
    return take().text;
  }

  [[noreturn]] void fail_at(int32_t line, const std::string& message) const {
    throw ConfigError(fmt::format("{}:{}: {}", where_, line, message));
  }
  [[noreturn]] void fail(const std::string& message) const {
    fail_at(line(), fmt::format("{}, found {}", message,
                                is(TokenKind::end)
                                    ? "the template's end"
                                    : fmt::format("'{}'", printable(now().text.substr(0, 40)))));
  }

  /// Up to the template's end, or a block that begins with one of `ends`, of which only {% is read.
  Body read_body(Names ends) {
    if (++depth_ > kMaxDepth) {
      fail_at(line(), fmt::format("more than {} blocks in each other", kMaxDepth));
    }
    Body body;
    while (!is(TokenKind::end)) {
      const Token token = take();
      if (token.kind == TokenKind::data) {
        body.push_back({StatementForm::data, token.line, token.text});
      } else if (token.text == "{{") {
        body.push_back({StatementForm::print, token.line});
        body.back().parts.push_back(tuple());
        expect("}}");
      } else if (is(TokenKind::name) && is_one_of(now().text, ends)) {
        break;
      } else {
        body.push_back(read_statement(token.line));
      }
    }
    if (ends.size() > 0 && is(TokenKind::end)) {
      fail(fmt::format("expected {{% {} %}}", *(ends.end() - 1)));
    }
    --depth_;
    return body;
  }

  /// Behind a name: the end of its mark, and the body up to one of `ends`.
  void read_block(Statement& node, Names ends) {
    expect("%}");
    node.bodies.push_back(read_body(ends));
  }
  void expect_end(std::string_view end) {
    expect(end);
    expect("%}");
  }

  Statement read_statement(int32_t line) {
    struct Known {
      std::string_view name;
      StatementForm form;
      void (Parser::*read)(Statement&);
      std::string_view end = {};  ///< of the body that follows
    };
    static constexpr Known kStatements[] = {
        {"for", StatementForm::loop, &Parser::read_for},
        {"if", StatementForm::choice, &Parser::read_if},
        {"set", StatementForm::set, &Parser::read_set},
        {"macro", StatementForm::macro, &Parser::read_macro, "endmacro"},
        {"call", StatementForm::call, &Parser::read_call, "endcall"},
        {"with", StatementForm::with, &Parser::read_with, "endwith"},
        {"filter", StatementForm::filter, &Parser::read_block_filter, "endfilter"},
        {"generation", StatementForm::generation, nullptr, "endgeneration"},
        {"break", StatementForm::breaks, &Parser::read_jump},
        {"continue", StatementForm::continues, &Parser::read_jump},
    };
    std::string name = expect_name("the name of a statement");
    const auto* const known = std::ranges::find(kStatements, name, &Known::name);
    if (known == std::end(kStatements)) {
      if (name.starts_with("end") || name == "else" || name == "elif") {
        fail_at(line, fmt::format("unexpected '{}'", name));
      }
      fail_at(line, fmt::format("the statement '{}' is not supported", name));
    }
    Statement node{known->form, line, std::move(name)};
    if (known->read != nullptr) (this->*known->read)(node);
    const bool is_macro = known->form == StatementForm::macro || known->form == StatementForm::call;
    const int32_t loops = is_macro ? std::exchange(loops_, 0) : loops_;
    if (!known->end.empty()) read_body_to(node, known->end);
    loops_ = loops;
    return node;
  }

  void read_body_to(Statement& node, std::string_view end) {
    read_block(node, {end});
    expect_end(end);
  }

  void read_jump(Statement& node) {
    if (loops_ == 0) fail_at(node.line, fmt::format("'{}' outside of a for", node.text));
    expect("%}");
  }

  void read_block_filter(Statement& node) { node.parts.push_back(block_filter()); }

  /// x, or x, y, or (x, y), or namespace.x.
  Target read_target(bool takes_attribute) {
    Target target;
    const bool in_parentheses = skip("(");
    do {
      if (is(TokenKind::name) &&
          is_one_of(now().text, {"true", "false", "none", "True", "False", "None"})) {
        fail("expected a name to assign to");
      }
      target.names.push_back(expect_name("a name to assign to"));
      if (takes_attribute && target.names.size() == 1 && skip(".")) {
        target.attribute = expect_name("the name of an attribute");
        return target;
      }
      if (!skip(",")) break;
      target.is_tuple = true;
    } while (is(TokenKind::name) && !is("in"));
    if (in_parentheses) expect(")");
    return target;
  }

  void read_for(Statement& node) {
    node.targets.push_back(read_target(false));
    expect("in");
    node.parts.push_back(tuple(false));
    node.parts.push_back(skip("if") ? expression() : nullptr);
    if (is("recursive")) fail("a recursive for is not supported");
    ++loops_;
    read_block(node, {"else", "endfor"});
    --loops_;
    read_otherwise(node, "endfor");
  }

  void read_if(Statement& node) {
    do {
      node.parts.push_back(tuple());
      read_block(node, {"elif", "else", "endif"});
    } while (skip("elif"));
    read_otherwise(node, "endif");
  }

  void read_otherwise(Statement& node, std::string_view end) {
    if (skip("else")) {
      read_block(node, {end});
    } else {
      node.bodies.emplace_back();
    }
    expect_end(end);
  }

  void read_set(Statement& node) {
    node.targets.push_back(read_target(true));
    if (skip("=")) {
      node.parts.push_back(tuple());
      expect("%}");
      return;
    }
    node.form = StatementForm::set_block;
    node.parts.push_back(skip("|") ? block_filter() : nullptr);
    read_body_to(node, "endset");
  }

  /// (a, b=1); nothing where there are no parentheses.
  void read_parameters(Statement& node) {
    if (!skip("(")) return;
    while (!is(")")) {
      if (!node.names.empty()) expect(",");
      node.names.push_back(expect_name("the name of a parameter"));
      ExpressionPtr value = skip("=") ? expression() : nullptr;
      if (!value && !node.parts.empty() && node.parts.back()) {
        fail("a parameter without a default follows one with a default");
      }
      node.parts.push_back(std::move(value));
    }
    expect(")");
  }

  void read_macro(Statement& node) {
    node.text = expect_name("the name of a macro");
    if (!is("(")) fail("expected '('");
    read_parameters(node);
  }

  void read_call(Statement& node) {
    node.text = "caller";
    read_parameters(node);
    ExpressionPtr call = expression();
    if (call->form != Form::call) fail("expected a call");
    node.parts.push_back(std::move(call));
  }

  void read_with(Statement& node) {
    while (!is("%}")) {
      if (!node.targets.empty()) expect(",");
      node.targets.push_back(read_target(false));
      expect("=");
      node.parts.push_back(expression());
    }
  }

  ExpressionPtr made(Expression node) const {
    int32_t depth = 0;
    for (const ExpressionPtr& part : node.parts) depth = std::max(depth, part ? part->depth : 0);
    if (depth >= kMaxDepth) refuse_levels(node.line);
    node.depth = depth + 1;
    return std::make_unique<const Expression>(std::move(node));
  }
  [[noreturn]] void refuse_levels(int32_t line) const {
    fail_at(line, fmt::format("an expression has more than {} levels", kMaxDepth));
  }

  template <typename... Parts>
  ExpressionPtr make(Form form, int32_t line, std::string text, Parts... parts) const {
    Expression node{form, line, std::move(text)};
    (node.parts.push_back(std::move(parts)), ...);
    return made(std::move(node));
  }
  static ExpressionPtr literal(Value value, int32_t line) {
    return std::make_unique<const Expression>(
        Expression{.form = Form::literal, .line = line, .value = std::move(value)});
  }

  /// An expression; `takes_if` false: up to an "if" that belongs to a statement.
  ExpressionPtr expression(bool takes_if = true) {
    if (++levels_ > kMaxDepth) refuse_levels(line());
    const int32_t line = this->line();
    ExpressionPtr value = operation(0);
    while (takes_if && skip("if")) {
      ExpressionPtr condition = operation(0);
      ExpressionPtr otherwise = skip("else") ? expression() : nullptr;
      value = make(Form::conditional, line, "", std::move(condition), std::move(value),
                   std::move(otherwise));
    }
    --levels_;
    return value;
  }

  /// Several with commas between are a tuple, as in {% for x in 1, 2 %}.
  ExpressionPtr tuple(bool takes_if = true) {
    const int32_t line = this->line();
    ExpressionPtr first = expression(takes_if);
    if (!is(",")) return first;
    Expression items{Form::tuple, line};
    items.parts.push_back(std::move(first));
    while (skip(",") && !is("%}") && !is("}}") && !is(")") && !is("=") && !is("recursive")) {
      items.parts.push_back(expression(takes_if));
    }
    return made(std::move(items));
  }

  /// Takes an operator; returns nothing where none of this rank is next.
  std::string take_operator(const Rank& rank) {
    for (const std::string_view op : rank.operators) {
      if (op == "not in" && is("not") && has_text(after(), "in")) {
        take(), take();
        return "not in";
      }
      if (skip(op)) return std::string(op);
    }
    return "";
  }

  /// Operands with operators of this rank, and of those that bind more, between them.
  ExpressionPtr operation(size_t index) {
    if (index == std::size(kRanks)) return unary();
    const Rank& rank = kRanks[index];
    const int32_t line = this->line();
    if (rank.form == Form::negation) {
      int32_t count = 0;
      while (skip("not")) ++count;
      ExpressionPtr value = operation(index + 1);
      for (; count > 0; --count) value = make(Form::negation, line, "", std::move(value));
      return value;
    }
    ExpressionPtr left = operation(index + 1);
    std::string op = take_operator(rank);
    if (op.empty()) return left;
    Expression whole{rank.form, line};  // of all operands, where it is not made of pairs
    const bool is_whole = rank.form == Form::compare || rank.form == Form::concat;
    for (; !op.empty(); op = take_operator(rank)) {
      ExpressionPtr right = operation(index + 1);
      if (is_whole) {
        if (whole.parts.empty()) add(whole, "", std::move(left));
        add(whole, std::move(op), std::move(right));
      } else {
        left = make(rank.form, line, std::move(op), std::move(left), std::move(right));
      }
    }
    return is_whole ? made(std::move(whole)) : std::move(left);
  }

  static void add(Expression& node, std::string name, ExpressionPtr part) {
    node.names.push_back(std::move(name));
    node.parts.push_back(std::move(part));
  }

  ExpressionPtr unary() {
    const int32_t line = this->line();
    std::string signs;
    while (is("-") || is("+")) signs += take().text;
    ExpressionPtr value = with_postfixes(primary());
    for (; !signs.empty(); signs.pop_back()) {
      value = with_postfixes(make(Form::sign, line, {signs.back()}, std::move(value)));
    }
    return with_filters(std::move(value));
  }

  ExpressionPtr primary() {
    const int32_t line = this->line();
    if (is(TokenKind::name)) return name();
    if (is(TokenKind::string)) {
      std::string text;
      while (is(TokenKind::string)) text += take().text;
      return literal(Value::text(std::move(text)), line);
    }
    if (is(TokenKind::integer)) {
      const std::string text = take().text;
      int64_t number = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) {
        fail_at(line, fmt::format("{} has more than 64 bits", text));
      }
      return literal(Value(number), line);
    }
    if (is(TokenKind::real)) {
      return literal(Value(std::strtod(take().text.c_str(), nullptr)), line);
    }
    if (skip("[")) return items(Form::list, "]");
    if (skip("{")) return items(Form::dict, "}");
    if (!skip("(")) fail("expected a value");
    if (skip(")")) return make(Form::tuple, line, "");
    ExpressionPtr value = tuple();
    expect(")");
    return value;
  }

  ExpressionPtr name() {
    const int32_t line = this->line();
    std::string text = take().text;
    if (text == "true" || text == "True") return literal(Value(true), line);
    if (text == "false" || text == "False") return literal(Value(false), line);
    if (text == "none" || text == "None") return literal(Value::none(), line);
    return make(Form::name, line, std::move(text));
  }

  /// The items of a list or a dictionary, and the bracket behind them.
  ExpressionPtr items(Form form, std::string_view end) {
    Expression node{form, line()};
    while (!is(end)) {
      if (!node.parts.empty()) expect(",");
      if (is(end)) break;
      node.parts.push_back(expression());
      if (form != Form::dict) continue;
      expect(":");
      node.parts.push_back(expression());
    }
    expect(end);
    return made(std::move(node));
  }

  ExpressionPtr with_postfixes(ExpressionPtr value) {
    for (;;) {
      if (is(".") || is("[")) {
        value = subscript(std::move(value));
      } else if (is("(")) {
        value = with_arguments(Form::call, line(), "", std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr with_filters(ExpressionPtr value) {
    for (;;) {
      if (is("|")) {
        value = filter(std::move(value));
      } else if (is("is")) {
        value = test(std::move(value));
      } else if (is("(")) {
        value = with_arguments(Form::call, line(), "", std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr object) {
    const int32_t line = this->line();
    if (skip(".")) {
      if (is(TokenKind::integer)) return make(Form::item, line, "", std::move(object), primary());
      return make(Form::attribute, line, expect_name("the name of an attribute"),
                  std::move(object));
    }
    expect("[");
    const auto bound = [&] { return is(":") || is("]") ? nullptr : expression(); };
    ExpressionPtr begin = bound();
    if (!skip(":")) {
      if (!begin) fail("expected an index");
      expect("]");
      return make(Form::item, line, "", std::move(object), std::move(begin));
    }
    ExpressionPtr end = bound();
    ExpressionPtr step = skip(":") ? bound() : nullptr;
    expect("]");
    return make(Form::slice, line, "", std::move(object), std::move(begin), std::move(end),
                std::move(step));
  }

  ExpressionPtr filter(ExpressionPtr input) {
    const int32_t line = this->line();
    expect("|");
    return with_arguments(Form::filter, line, expect_name("the name of a filter"),
                          std::move(input));
  }

  /// upper | replace("a", "b"), of the text of a block.
  ExpressionPtr block_filter() {
    const int32_t line = this->line();
    ExpressionPtr value =
        with_arguments(Form::filter, line, expect_name("the name of a filter"), nullptr);
    while (is("|")) value = filter(std::move(value));
    return value;
  }

  ExpressionPtr test(ExpressionPtr input) {
    const int32_t line = this->line();
    expect("is");
    const bool is_negated = skip("not");
    std::string name = expect_name("the name of a test");
    const bool is_word = is(TokenKind::name) &&
                         !is_one_of(now().text, {"else", "or", "and", "if", "is", "in", "not"});
    const bool is_value = is_word || is(TokenKind::string) || is(TokenKind::integer) ||
                          is(TokenKind::real) || is("[") || is("{");
    ExpressionPtr value;
    if (is_value) {
      value = make(Form::test, line, std::move(name), std::move(input), with_postfixes(primary()));
    } else {
      value = with_arguments(Form::test, line, std::move(name), std::move(input));
    }
    return is_negated ? make(Form::negation, line, "", std::move(value)) : std::move(value);
  }

  /// A call, filter or test of `input`, with the arguments in parentheses where there are any.
  ExpressionPtr with_arguments(Form form, int32_t line, std::string text, ExpressionPtr input) {
    Expression node{form, line, std::move(text)};
    add(node, "", std::move(input));
    if (!skip("(")) return made(std::move(node));
    while (!is(")")) {
      if (node.parts.size() > 1) expect(",");
      if (is(")")) break;
      std::string name;
      if (is(TokenKind::name) && has_text(after(), "=")) {
        name = take().text;
        take();
      } else if (is("*") || is("**")) {
        name = take().text;
      } else if (!node.names.back().empty()) {
        fail("an argument without a name follows one with a name");
      }
      add(node, std::move(name), expression());
    }
    expect(")");
    return made(std::move(node));
  }

  const std::vector<Token> tokens_;
  const std::string& where_;
  size_t at_ = 0;
  int32_t depth_ = 0;   ///< of statements
  int32_t levels_ = 0;  ///< of expressions
  int32_t loops_ = 0;   ///< that a `break` is within
};

}  // namespace

Tree parse(std::string_view source, const std::string& where) {
  if (source.size() > kMaxBytes) {
    throw ConfigError(fmt::format("{}: a chat template of {} bytes, more than {}", where,
                                  source.size(), kMaxBytes));
  }
  return Parser(source, where).run();
}

}  // namespace fp8train::jinja
