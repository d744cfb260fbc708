#pragma once
// A template as a tree (Jinja 3, nodes.py), and its parser (parser.py).

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/value.h"

namespace fp8train::jinja {

/// The form of an expression. The comments say which parts it has, and what its text is.
enum class Form : uint8_t {
  literal,      ///< no parts, a value
  name,         ///< no parts; text: the name
  list,         ///< its items
  tuple,        ///< its items
  dict,         ///< key, value, key, value, ..
  either,       ///< left, right (or)
  both,         ///< left, right (and)
  negation,     ///< the operand (not)
  compare,      ///< a < b < c, with == != < <= > >= in "not in" as names
  arithmetic,   ///< left, right; text: + - * / // % **
  concat,       ///< what is joined (~)
  sign,         ///< the operand; text: + -
  conditional,  ///< condition, value, otherwise: null where there is no else
  attribute,    ///< the object; text: the attribute
  item,         ///< object, index
  slice,        ///< object, begin, end, step: null where left out
  call,         ///< the callee, arguments
  filter,       ///< the input, arguments; text: the filter. Input null: the text of a block
  test,         ///< the input, arguments; text: the test
};

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  Form form = Form::literal;
  int32_t line = 0;
  std::string text = {};
  std::vector<ExpressionPtr> parts = {};
  /// Of each part the operator in front of it, or the name of the argument, which is empty for one
  /// by position, and "*" or "**" for the elements of a list or a dictionary. Empty: no part has
  /// any.
  std::vector<std::string> names = {};
  Value value = {};
  int32_t depth = 1;  ///< levels of expressions, this one included
};

struct Statement;
using Body = std::vector<Statement>;

/// The left side of an assignment: a name, an attribute of a namespace, or several names.
struct Target {
  std::vector<std::string> names;
  std::string attribute;  ///< of the one name, a namespace
  bool is_tuple = false;
};

/// The form of a statement. The comments say which parts, bodies, targets and names it has.
enum class StatementForm : uint8_t {
  data,        ///< text
  print,       ///< the expression
  set,         ///< the value; the target
  set_block,   ///< a filter or null; the body; the target
  loop,        ///< the items, a condition or null; the body, otherwise; the target
  choice,      ///< the conditions; a body for each, otherwise
  macro,       ///< the parameters' defaults or null; the body; the parameters; text: the macro
  call,        ///< the same for the macro `caller`, which is the body, and then the call
  with,        ///< the values; the body; a target for each
  filter,      ///< the filter; the body
  generation,  ///< {% generation %} of transformers: the body, which the model learns
  breaks,
  continues,
};

struct Statement {
  StatementForm form = StatementForm::data;
  int32_t line = 0;
  std::string text = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<Body> bodies = {};
  std::vector<Target> targets = {};
  std::vector<std::string> names = {};
};

/// A template that has been read, and the names in its marks: those of its variables, and others.
struct Tree {
  Body body;
  std::set<std::string, std::less<>> names;
};

/// Returns the tree of a template of at most 1 MiB, in which expressions and statements are nested
/// at most 100 levels deep. Throws ConfigError.
Tree parse(std::string_view source, const std::string& where);

}  // namespace fp8train::jinja
