#pragma once
// Walks the tree of a template.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "data/chat/jinja/ast.h"
#include "data/chat/jinja/template.h"

namespace fp8train::jinja {

/// Names and their values. Those of an inner scope hide those of the outer ones.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> names = {};

  /// Here and in outer scopes. Adds the names that were looked at to `seen`.
  const Value* find(std::string_view name, int64_t& seen) const;
  void set(std::string_view name, Value value);  ///< here
};

/// The arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> values = {};
  std::vector<std::pair<std::string, Value>> named = {};

  /// The argument at this position or with this name; null where there is none.
  const Value* find(size_t position, std::string_view name) const;
  bool flag(size_t position, std::string_view name, bool otherwise) const;
};

/// Expressions, blocks and macros are within each other at most this often.
inline constexpr int32_t kMaxCalls = 400;

/// Renders a template once.
class Interpreter : NotCopied {
 public:
  Interpreter(const std::string& where, Budget& budget) : where_(where), budget_(budget) {}
  ~Interpreter();

  Rendered run(const Body& body, const Variables& variables);

  /// Throws DataError with file and line.
  [[noreturn]] void fail(const std::string& message) const;
  /// Takes from the budget.
  void spend(int64_t steps, int64_t bytes);

  /// Makes values, which are taken from the budget.
  Value text(Text text);
  Value text(std::string bytes) { return text(Text(std::move(bytes))); }
  Value list(std::vector<Value> items, List::Kind kind = List::Kind::list);
  Value dict(Dict dict);
  /// text_of(), taken from the budget.
  Text written(const Value& value);

  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& index);
  /// The elements that a for statement goes over.
  std::shared_ptr<const List> elements(const Value& value);
  Value call(const Value& callee, const Arguments& arguments);
  Value filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool test(std::string_view name, const Value& input, const Arguments& arguments);
  /// a OP b for the operators of Compare.
  bool compare(std::string_view op, const Value& a, const Value& b);
  /// a + b, and so on.
  Value binary(std::string_view op, const Value& a, const Value& b);
  /// Returns a text for a message: printable, and cut.
  static std::string shown(std::string_view text);
  /// Throws where there are more arguments than `name` takes.
  void require_at_most(const Arguments& arguments, size_t most, std::string_view name) const;
  /// Throws where `value` is undefined.
  const Value& defined(const Value& value) const;
  /// Returns the text of an argument; throws where it is none.
  const Text& text_argument(const Value& value, std::string_view what) const;
  int64_t integer_argument(const Value& value, std::string_view what) const;

 private:
  static constexpr int64_t kBytesOfLasting = 256;  ///< of what lives to the end
  enum class Flow : uint8_t { next, breaks, continues };

  Value evaluate(const Expression& expression);
  Value evaluate(const Literal& node) { return node.value; }
  Value evaluate(const Name& node);
  Value evaluate(const Items& node);
  Value evaluate(const Pairs& node);
  Value evaluate(const Unary& node);
  Value evaluate(const Binary& node);
  Value evaluate(const Concat& node);
  Value evaluate(const Compare& node);
  Value evaluate(const Conditional& node);
  Value evaluate(const Attribute& node) { return attribute(evaluate(*node.object), node.name); }
  Value evaluate(const Item& node);
  Value evaluate(const Slice& node);
  Value evaluate(const Call& node);
  Value evaluate(const Filter& node);
  Value evaluate(const Test& node);
  Arguments evaluate(const std::vector<Argument>& arguments);
  void require_levels(const Extent& extent) const;
  std::optional<int64_t> bound(const ExpressionPtr& part);

  Flow execute(const Body& body);
  Flow execute(const Data& node) { return write(written(Value::text(node.text))); }
  Flow execute(const Print& node) { return write(written(evaluate(*node.value))); }
  Flow execute(const Set& node);
  Flow execute(const SetBlock& node);
  Flow execute(const For& node);
  Flow execute(const If& node);
  Flow execute(const Macro& node);
  Flow execute(const CallBlock& node);
  Flow execute(const With& node);
  Flow execute(const FilterBlock& node);
  Flow execute(const Generation& node);
  Flow execute(const Break&) { return Flow::breaks; }
  Flow execute(const Continue&) { return Flow::continues; }

  Flow execute_apart(const Body& body);  ///< in a scope of its own
  Flow write(const Text& text);
  void assign(const Target& target, const Value& value);
  Value macro_of(const Macro& macro);
  Value call_macro(const Function& function, const Arguments& arguments);
  Value range(const Arguments& arguments);
  Value call_builtin(const Function& function, const Arguments& arguments);
  Value call_loop(const Function& function, const Arguments& arguments);
  Value loop_attribute(const std::shared_ptr<Loop>& loop, std::string_view name);
  std::shared_ptr<const List> elements_that_fit(const For& node);
  /// The text that a body writes, in a scope of its own.
  Text captured(const Body& body);

  /// Returns the value of a name, or null.
  const Value* find(std::string_view name);
  void set(std::string_view name, Value value);  ///< in the innermost scope
  std::shared_ptr<Scope> inner_scope() const { return std::make_shared<Scope>(Scope{scope_, {}}); }

  const std::string& where_;
  Budget& budget_;
  int32_t line_ = 0;
  int32_t depth_ = 0;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> macro_scopes_;  ///< scopes that macros were defined in
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Loop>> changed_loops_;  ///< on which changed() was called
  Value filtered_;                                    ///< the text of a filter block
  Text* out_ = nullptr;
  Text* whole_ = nullptr;
  std::vector<std::pair<size_t, size_t>> generations_;
};

/// The methods of texts, dictionaries and lists.
bool has_method(const Value& object, std::string_view name);
Value call_method(Interpreter& interpreter, const Value& self, const std::string& name,
                  const Arguments& arguments);

/// A filter, a method or a test.
template <class Result>
struct Entry {
  std::string_view name;
  Result (*function)(Interpreter&, const Value& input, const Arguments& arguments);
  size_t max_arguments = 0;
};
// Null where there is none of this name.
template <class Result, size_t size>
const Entry<Result>* entry_in(const Entry<Result> (&table)[size], std::string_view name) {
  const auto* const found = std::ranges::find(table, name, &Entry<Result>::name);
  return found == std::end(table) ? nullptr : found;
}
const Entry<Value>* find_filter(std::string_view name);
const Entry<Value>* find_list_filter(std::string_view name);  ///< of filters of lists alone
const Entry<bool>* find_test(std::string_view name);

}  // namespace fp8train::jinja
