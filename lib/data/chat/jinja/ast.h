#pragma once
// A template as a tree (Jinja 3, nodes.py), and its parser (parser.py).

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/chat/jinja/value.h"

namespace fp8train::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Argument {
  std::string name;  ///< empty: by position; "*" and "**": the elements of a list or a dictionary
  ExpressionPtr value;
};

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct Items {  ///< a list or a tuple
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct Pairs {  ///< a dictionary
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> pairs;
};
struct Unary {
  std::string op;  ///< + - not
  ExpressionPtr operand;
};
struct Binary {
  std::string op;  ///< + - * / // % ** and or
  ExpressionPtr left, right;
};
struct Concat {  ///< ~
  std::vector<ExpressionPtr> parts;
};
struct Compare {  ///< a < b < c
  ExpressionPtr first;
  std::vector<std::pair<std::string, ExpressionPtr>> rest;  ///< == != < <= > >= in "not in"
};
struct Conditional {
  ExpressionPtr condition, value, otherwise;  ///< otherwise: null where there is no else
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Item {
  ExpressionPtr object, index;
};
struct Slice {
  ExpressionPtr object, begin, end, step;  ///< null where left out
};
struct Call {
  ExpressionPtr callee;
  std::vector<Argument> arguments;
};
struct Filter {
  ExpressionPtr input;  ///< null: the text of a block
  std::string name;
  std::vector<Argument> arguments;
};
struct Test {
  ExpressionPtr input;
  std::string name;
  std::vector<Argument> arguments;
};

struct Expression {
  using Node = std::variant<Literal, Name, Items, Pairs, Unary, Binary, Concat, Compare,
                            Conditional, Attribute, Item, Slice, Call, Filter, Test>;
  Node node;
  int32_t line = 0;
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

struct Data {
  std::string text;
};
struct Print {
  ExpressionPtr value;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  ///< null: none
  Body body;
};
struct For {
  Target target;
  ExpressionPtr items, condition;  ///< condition: null where there is none
  Body body, otherwise;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  ///< with their defaults or null
  Body body;
};
struct CallBlock {  ///< {% call %}: the body is the macro `caller`
  std::unique_ptr<const Macro> caller;
  ExpressionPtr call;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};
struct FilterBlock {
  ExpressionPtr filter;
  Body body;
};
struct Generation {  ///< {% generation %} of transformers: what the model learns
  Body body;
};
struct Break {};
struct Continue {};

struct Statement {
  std::variant<Data, Print, Set, SetBlock, For, If, Macro, CallBlock, With, FilterBlock, Generation,
               Break, Continue>
      node;
  int32_t line = 0;
};

/// Returns the names of a template's expressions, which may be those of its variables, without
/// reading it further. Throws as parse() does.
std::set<std::string> names_in(std::string_view source, const std::string& where);

/// Returns the statements of a template of at most 1 MiB, in which expressions and statements are
/// nested at most 100 levels deep. Throws ConfigError.
Body parse(std::string_view source, const std::string& where);

}  // namespace fp8train::jinja
