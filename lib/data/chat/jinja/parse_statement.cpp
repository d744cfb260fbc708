#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "data/chat/jinja/parser.h"

namespace fp8train::jinja {
namespace {

constexpr size_t kMaxBytes = 1U << 20;

using Names = std::initializer_list<std::string_view>;

/// Reads statements.
class Parser {
 public:
  explicit Parser(TokenReader reader) : reader_(std::move(reader)), expressions_(reader_) {}

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
        body.push_back({Print{expressions_.tuple()}, line});
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
      ExpressionPtr filter = expressions_.block_filter();
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
    loop.items = expressions_.tuple(false);
    if (reader_.skip_name("if")) loop.condition = expressions_.expression();
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
      ExpressionPtr condition = expressions_.tuple();
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
      Set set{std::move(target), expressions_.tuple()};
      reader_.expect_block_end();
      return {std::move(set), line};
    }
    ExpressionPtr filter = reader_.skip_symbol("|") ? expressions_.block_filter() : nullptr;
    return {SetBlock{std::move(target), std::move(filter), read_body_to("endset")}, line};
  }

  /// (a, b=1); nothing where there are no parentheses.
  std::vector<std::pair<std::string, ExpressionPtr>> read_parameters() {
    std::vector<std::pair<std::string, ExpressionPtr>> parameters;
    if (!reader_.skip_symbol("(")) return parameters;
    while (!reader_.is_symbol(")")) {
      if (!parameters.empty()) reader_.expect_symbol(",");
      std::string name = reader_.expect_any_name("the name of a parameter");
      ExpressionPtr value = reader_.skip_symbol("=") ? expressions_.expression() : nullptr;
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
    ExpressionPtr call = expressions_.expression();
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
      node.values.emplace_back(std::move(target), expressions_.expression());
    }
    node.body = read_body_to("endwith");
    return node;
  }

  TokenReader reader_;
  ExpressionParser expressions_;
  int32_t depth_ = 0;
  int32_t loops_ = 0;  ///< that a `break` is within
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
