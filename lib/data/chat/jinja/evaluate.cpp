// Expressions.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/chat/jinja/interpreter.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace {

constexpr int32_t kMaxLevels = 64;    ///< lists and dictionaries within each other
constexpr size_t kMaxEntries = 1024;  ///< of a dictionary, whose entries are looked for one by one
constexpr size_t kBytesOfValue = 64;

}  // namespace

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  const auto found = std::find_if(named.begin(), named.end(),
                                  [&](const auto& argument) { return argument.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

bool Arguments::flag(size_t position, std::string_view name, bool otherwise) const {
  const Value* value = find(position, name);
  return value == nullptr ? otherwise : value->is_true();
}

Value Interpreter::text(Text text) {
  spend(0,
        static_cast<int64_t>(kBytesOfValue + text.bytes.size() + text.spans.size() * sizeof(Span)));
  return Value(std::move(text));
}

Value Interpreter::list(std::vector<Value> items, List::Kind kind) {
  spend(0, static_cast<int64_t>(kBytesOfValue + items.size() * sizeof(Value)));
  List list{std::move(items), kind, {1, 1}};
  for (const Value& item : list.items) list.extent.hold(extent_of(item));
  require_levels(list.extent);
  return Value(std::move(list));
}

Value Interpreter::dict(Dict dict) {
  spend(0, static_cast<int64_t>(kBytesOfValue + dict.entries.size() * 2 * sizeof(Value)));
  if (dict.entries.size() > kMaxEntries) {
    fail(fmt::format("a dictionary of more than {} entries", kMaxEntries));
  }
  dict.extent = {1, 1};
  for (const auto& [key, value] : dict.entries) {
    dict.extent.hold(extent_of(key));
    dict.extent.hold(extent_of(value));
  }
  require_levels(dict.extent);
  return Value(std::move(dict));
}

void Interpreter::require_levels(const Extent& extent) const {
  if (extent.levels > kMaxLevels) {
    fail(fmt::format("more than {} lists and dictionaries within each other", kMaxLevels));
  }
}

Text Interpreter::written(const Value& value) {
  const List* list = value.as_list();
  if (list != nullptr && !list->has_sum()) {
    fail(fmt::format("a {} is written; '| list' makes a list of it", value.type_name()));
  }
  const int64_t size = extent_of(value).size;
  spend(size, 0);
  Text out = text_of(value);
  spend(0, static_cast<int64_t>(out.bytes.size()));
  return out;
}

std::string Interpreter::shown(std::string_view text) {
  constexpr size_t kMaxShown = 60;
  return printable(text.substr(0, kMaxShown)) + (text.size() > kMaxShown ? "..." : "");
}

const Value& Interpreter::defined(const Value& value) const {
  if (const auto* undefined = value.get<Undefined>()) {
    fail(undefined->reason.empty() ? "a value is not defined" : undefined->reason);
  }
  return value;
}

const Text& Interpreter::text_argument(const Value& value, std::string_view what) const {
  const Text* text = defined(value).as_text();
  if (text == nullptr) fail(fmt::format("{} takes a text, not {}", what, value.type_name()));
  return *text;
}

int64_t Interpreter::integer_argument(const Value& value, std::string_view what) const {
  if (!defined(value).is_integer()) {
    fail(fmt::format("{} takes an integer, not {}", what, value.type_name()));
  }
  return value.integer();
}

Value Interpreter::evaluate(const Expression& expression) {
  if (++depth_ > kMaxCalls) fail(fmt::format("more than {} calls in each other", kMaxCalls));
  spend(1, 0);
  line_ = expression.line;
  Value value = std::visit([&](const auto& node) { return evaluate(node); }, expression.node);
  --depth_;
  return value;
}

Value Interpreter::evaluate(const Name& node) {
  const Value* value = find(node.name);
  if (value != nullptr) return *value;
  return Value(Undefined{fmt::format("'{}' is undefined", shown(node.name))});
}

Value Interpreter::evaluate(const Items& node) {
  std::vector<Value> items;
  for (const ExpressionPtr& item : node.items) items.push_back(evaluate(*item));
  return list(std::move(items), node.is_tuple ? List::Kind::tuple : List::Kind::list);
}

Value Interpreter::evaluate(const Pairs& node) {
  Dict result;
  for (const auto& [key, value] : node.pairs) {
    Value name = evaluate(*key);
    if (name.as_text() == nullptr && !name.is_number() && !name.is_none()) {
      fail(fmt::format("a key of a dictionary is {}", name.type_name()));
    }
    spend(static_cast<int64_t>(result.entries.size() / 8), 0);
    result.set(std::move(name), evaluate(*value));
  }
  return dict(std::move(result));
}

Value Interpreter::evaluate(const Unary& node) {
  const Value value = evaluate(*node.operand);
  if (node.op == "not") return Value(!value.is_true());
  if (!defined(value).is_number()) fail(fmt::format("{} of {}", node.op, value.type_name()));
  if (node.op == "+") return value.is_integer() ? Value(value.integer()) : value;
  if (const double* real = value.get<double>()) return Value(-*real);
  return binary("-", Value(int64_t{0}), value);
}

Value Interpreter::evaluate(const Binary& node) {
  Value left = evaluate(*node.left);
  if (node.op == "and") return left.is_true() ? evaluate(*node.right) : left;
  if (node.op == "or") return left.is_true() ? left : evaluate(*node.right);
  const Value right = evaluate(*node.right);
  return binary(node.op, left, right);
}

Value Interpreter::evaluate(const Concat& node) {
  Text joined;
  for (const ExpressionPtr& part : node.parts) joined.append(written(evaluate(*part)));
  return text(std::move(joined));
}

Value Interpreter::evaluate(const Compare& node) {
  Value left = evaluate(*node.first);
  for (const auto& [op, part] : node.rest) {
    Value right = evaluate(*part);
    if (!compare(op, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate(const Conditional& node) {
  if (evaluate(*node.condition).is_true()) return evaluate(*node.value);
  if (node.otherwise) return evaluate(*node.otherwise);
  return Value(Undefined{"an expression with 'if' has no 'else' and is undefined"});
}

Value Interpreter::evaluate(const Item& node) {
  const Value object = evaluate(*node.object);
  return item(object, evaluate(*node.index));
}

std::optional<int64_t> Interpreter::bound(const ExpressionPtr& part) {
  if (!part) return std::nullopt;
  const Value value = evaluate(*part);
  if (value.is_none()) return std::nullopt;
  return integer_argument(value, "a slice");
}

/// As Python's slice.indices().
Value Interpreter::evaluate(const Slice& node) {
  const Value object = evaluate(*node.object);
  const Text* whole = defined(object).as_text();
  const List* all = object.as_list();
  if (whole != nullptr) spend(extent_of(object).size, 0);
  if (whole == nullptr && all == nullptr) fail(fmt::format("a slice of {}", object.type_name()));
  const std::optional<int64_t> from = bound(node.begin), to = bound(node.end);
  const int64_t step = bound(node.step).value_or(1);
  if (step == 0) fail("the step of a slice is 0");
  const int64_t size =
      whole != nullptr ? length_of(whole->bytes) : static_cast<int64_t>(all->items.size());
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto position = [&](const std::optional<int64_t>& at, int64_t otherwise) {
    if (!at) return otherwise;
    return std::clamp(*at < 0 ? *at + size : *at, low, high);
  };
  const int64_t begin = position(from, step > 0 ? low : high);
  const int64_t end = position(to, step > 0 ? high : low);
  if (whole != nullptr && step == 1) {
    const size_t first = byte_of(whole->bytes, begin);
    return text(whole->slice(first, std::max(first, byte_of(whole->bytes, end))));
  }
  const std::shared_ptr<const List> items = elements(object);
  std::vector<Value> taken;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    taken.push_back(items->items[static_cast<size_t>(i)]);
    if (step >= size || step <= -size) break;
  }
  if (whole == nullptr) return list(std::move(taken), all->kind);
  Text joined;
  for (const Value& part : taken) joined.append(*part.as_text());
  return text(std::move(joined));
}

Arguments Interpreter::evaluate(const std::vector<Argument>& arguments) {
  Arguments given;
  for (const Argument& argument : arguments) {
    Value value = evaluate(*argument.value);
    if (argument.name.empty()) {
      given.values.push_back(std::move(value));
    } else if (argument.name == "*") {
      const std::shared_ptr<const List> all = elements(value);
      given.values.insert(given.values.end(), all->items.begin(), all->items.end());
    } else if (argument.name == "**") {
      if (value.as_dict() == nullptr) fail("** takes a dictionary");
      for (const auto& [key, entry] : value.as_dict()->entries) {
        given.named.emplace_back(text_argument(key, "the name of an argument").bytes, entry);
      }
    } else {
      given.named.emplace_back(argument.name, std::move(value));
    }
  }
  return given;
}

Value Interpreter::evaluate(const Call& node) {
  const Value callee = evaluate(*node.callee);
  const Arguments arguments = evaluate(node.arguments);
  return call(callee, arguments);
}

Value Interpreter::evaluate(const Filter& node) {
  const Value input = node.input ? evaluate(*node.input) : filtered_;
  return filter(node.name, input, evaluate(node.arguments));
}

Value Interpreter::evaluate(const Test& node) {
  const Value input = evaluate(*node.input);
  return Value(test(node.name, input, evaluate(node.arguments)));
}

Value Interpreter::filter(std::string_view name, const Value& input, const Arguments& arguments) {
  const Entry<Value>* found = find_filter(name);
  if (found == nullptr) fail(fmt::format("the filter '{}' is not supported", shown(name)));
  require_at_most(arguments, found->max_arguments, name);
  return found->function(*this, input, arguments);
}

void Interpreter::require_at_most(const Arguments& arguments, size_t most,
                                  std::string_view name) const {
  if (arguments.values.size() + arguments.named.size() > most) {
    fail(fmt::format("'{}' takes at most {} arguments here", shown(name), most));
  }
}

bool Interpreter::test(std::string_view name, const Value& input, const Arguments& arguments) {
  const Entry<bool>* found = find_test(name);
  if (found == nullptr) fail(fmt::format("the test '{}' is not supported", shown(name)));
  return found->function(*this, input, arguments);
}

std::shared_ptr<const List> Interpreter::elements(const Value& value) {
  if (const auto* list = value.get<Value::ListPointer>()) {
    spend(std::ssize((*list)->items), 0);
    const bool is_used = std::exchange((*list)->is_used, (*list)->kind == List::Kind::generator);
    return is_used ? std::make_shared<const List>() : *list;
  }
  std::vector<Value> items;
  if (const Dict* dict = value.as_dict()) {
    for (const auto& entry : dict->entries) items.push_back(entry.first);
  } else if (const Text* whole = value.as_text()) {
    for (size_t at = 0; at < whole->bytes.size();) {
      const size_t length = byte_of(std::string_view(whole->bytes).substr(at), 1);
      items.push_back(text(whole->slice(at, at + length)));
      at += length;
    }
  } else if (!value.is_undefined()) {
    fail(fmt::format("{} has no elements", value.type_name()));
  }
  return *list(std::move(items)).get<Value::ListPointer>();
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  defined(object);
  if (const auto* space = object.get<std::shared_ptr<Namespace>>()) {
    const Value* value = (*space)->attributes.find(name);
    if (value != nullptr) return *value;
  } else if (const auto* loop = object.get<std::shared_ptr<Loop>>()) {
    return loop_attribute(*loop, name);
  } else if (has_method(object, name)) {
    return Value(Function{Function::Kind::method, std::string(name),
                          std::make_shared<const Value>(object), nullptr, nullptr});
  } else if (const Dict* dict = object.as_dict()) {
    spend(std::ssize(dict->entries) / 8, 0);
    const Value* value = dict->find(name);
    if (value != nullptr) return *value;
  }
  return Value(Undefined{
      fmt::format("'{}' has no attribute or method '{}'", object.type_name(), shown(name))});
}

Value Interpreter::item(const Value& object, const Value& index) {
  defined(object);
  if (const Dict* dict = object.as_dict()) {
    spend(std::ssize(dict->entries) / 8 + extent_of(index).size, 0);
    const Value* value = dict->find(index);
    if (value != nullptr) return *value;
  }
  if (const Text* name = index.as_text()) return attribute(object, name->bytes);
  const List* list = object.as_list();
  const Text* whole = object.as_text();
  const bool is_ordered = (list != nullptr && list->is_ordered()) || whole != nullptr;
  if (is_ordered && index.is_integer()) {
    const int64_t size =
        list != nullptr ? static_cast<int64_t>(list->items.size()) : length_of(whole->bytes);
    const int64_t at = index.integer() < 0 ? index.integer() + size : index.integer();
    if (at >= 0 && at < size) {
      if (list != nullptr) return list->items[static_cast<size_t>(at)];
      spend(extent_of(object).size, 0);
      return text(whole->slice(byte_of(whole->bytes, at), byte_of(whole->bytes, at + 1)));
    }
  }
  const std::string which =
      index.is_integer() ? fmt::format("{}", index.integer()) : std::string(index.type_name());
  return Value(Undefined{fmt::format("'{}' has no element {}", object.type_name(), which)});
}

Value Interpreter::loop_attribute(const std::shared_ptr<Loop>& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop->items->items.size());
  const auto at = [&](int64_t index) {
    if (index >= 0 && index < size) return loop->items->items[static_cast<size_t>(index)];
    return Value(Undefined{fmt::format("there is no {} item", index < 0 ? "previous" : "next")});
  };
  if (name == "index") return Value(loop->index + 1);
  if (name == "index0") return Value(loop->index);
  if (name == "revindex") return Value(size - loop->index);
  if (name == "revindex0") return Value(size - loop->index - 1);
  if (name == "first") return Value(loop->index == 0);
  if (name == "last") return Value(loop->index + 1 == size);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(int64_t{1});  // deeper ones are those of recursive loops
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return at(loop->index - 1);
  if (name == "nextitem") return at(loop->index + 1);
  if (name == "cycle" || name == "changed") {
    return Value(Function{Function::Kind::loop_method, std::string(name),
                          std::make_shared<const Value>(loop), nullptr, nullptr});
  }
  return Value(Undefined{fmt::format("'loop' has no attribute '{}'", shown(name))});
}

}  // namespace fp8train::jinja
