#pragma once
// Walks the tree of a template, and calls what its expressions name.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "data/chat/jinja/ast.h"
#include "data/chat/jinja/template.h"

namespace fp8train::jinja {

class Interpreter;
struct Call;

/// Names and their values. Those of an inner scope hide those of the outer ones.
struct Scope {
  using NamedValue = std::pair<std::string_view, Value>;
  std::shared_ptr<Scope> parent;
  std::vector<NamedValue> names = {};

  void set(std::string_view name, Value value);  ///< here
};

/// A filter, a test, a method or a function, with the names of its parameters.
struct Callable {
  static constexpr std::string_view kAny = "*";  ///< as the first parameter: any arguments

  std::string_view name;
  Value (*function)(const Call& call);
  std::array<std::string_view, 4> parameters = {};
};
using Callables = std::span<const Callable>;

extern const Callables kValueFilters;  ///< filters.cpp
extern const Callables kTextFilters;   ///< texts.cpp
extern const Callables kListFilters;   ///< lists.cpp
extern const Callables kTests;         ///< operators.cpp
extern const Callables kFunctions;     ///< functions.cpp
extern const Callables kLoopMethods;   ///< functions.cpp
extern const Callables kTextMethods;   ///< texts.cpp
extern const Callables kListMethods;   ///< lists.cpp
extern const Callables kDictMethods;   ///< lists.cpp

/// The arguments of a call, by position and by name.
struct Arguments {
  std::vector<Value> values = {};
  std::vector<std::pair<std::string, Value>> named = {};

  /// The argument at this position or with this name; null where there is none.
  const Value* find(size_t position, std::string_view name) const;
};

/// A call of a Callable. Parameters are counted from 0.
struct Call {
  Interpreter& run;
  const Callable& callee;
  const Value& self;  ///< the input of a filter or a test, the object of a method
  const Arguments& arguments;

  const Value* find(size_t parameter) const;   ///< null where it is not given
  const Value* given(size_t parameter) const;  ///< null also where it is None
  bool flag(size_t parameter) const;           ///< false where it is not given
  int64_t integer(size_t parameter, int64_t otherwise) const;
  // These throw where the argument is not given.
  const Value& at(size_t parameter) const;
  const Text& text(size_t parameter) const;
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
  void spend(int64_t steps, int64_t bytes = 0);
  /// Calls `end` when the template has ended: for what may hold itself.
  void at_end(std::function<void()> end);

  /// Makes values, which are taken from the budget.
  Value text(Text text);
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
  Value test(std::string_view name, const Value& input, const Arguments& arguments);
  /// a OP b for the operators of comparisons.
  bool compare(std::string_view op, const Value& a, const Value& b);
  /// a + b, and so on.
  Value binary(std::string_view op, const Value& a, const Value& b);
  /// Throws where `value` is undefined.
  const Value& defined(const Value& value) const;
  /// Returns the text of an argument; throws where it is none.
  const Text& text_argument(const Value& value, std::string_view what) const;
  int64_t integer_argument(const Value& value, std::string_view what) const;

 private:
  enum class Flow : uint8_t { next, breaks, continues };

  Value evaluate(const Expression& node);
  Value value_of(const Expression& node);
  Value dict_of(const Expression& node);
  Value signed_value(std::string_view sign, const Value& value);
  Value compared(const Expression& node);
  Value slice(const Expression& node);
  std::vector<Value> values_of(const Expression& node);
  Arguments arguments_of(const Expression& node);
  void require_levels(const Extent& extent) const;
  Value invoke(const Callable& callee, const Value& self, const Arguments& arguments);

  Flow execute(const Body& body);
  Flow execute(const Statement& node);
  Flow execute_loop(const Statement& node);
  Flow execute_with(const Statement& node);
  Flow execute_apart(const Body& body);  ///< in a scope of its own
  Flow write(const Value& value);
  void assign(const Target& target, const Value& value);
  Value macro_of(const Statement& macro);
  Value call_macro(const Function& function, const Arguments& arguments);
  std::shared_ptr<const List> elements_that_fit(const Statement& node);
  Value filtered(const Statement& node);  ///< the text of its body
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
  std::vector<std::function<void()>> ends_;
  Value filtered_;  ///< the text of a filter block
  Text* out_ = nullptr;
  Text* whole_ = nullptr;
  std::vector<std::pair<size_t, size_t>> generations_;
};

}  // namespace fp8train::jinja
