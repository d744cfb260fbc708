// Expressions.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/jinja/interpreter.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace {

constexpr int32_t kMaxLevels = 64;    ///< lists and dictionaries within each other
constexpr size_t kMaxEntries = 1024;  ///< of a dictionary, whose entries are looked for one by one
constexpr size_t kBytesOfValue = 64;

/// Returns a text for a message: printable, and cut.
std::string shown(std::string_view text) {
  constexpr size_t kMaxShown = 60;
  return printable(text.substr(0, kMaxShown)) + (text.size() > kMaxShown ? "..." : "");
}

Value undefined(std::string reason) {
  return Value(Undefined{std::move(reason)});
}

const Callable* find_callable(Callables table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Callable::name);
  return found == table.end() ? nullptr : &*found;
}

Callables methods_of(const Value& object) {
  if (object.as_text() != nullptr) return kTextMethods;
  if (object.as_dict() != nullptr) return kDictMethods;
  if (object.as_list() != nullptr) return kListMethods;
  return object.get<std::shared_ptr<Loop>>() != nullptr ? kLoopMethods : Callables();
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.items->items.size());
  const auto at = [&](int64_t index) {
    if (index >= 0 && index < size) return loop.items->items[static_cast<size_t>(index)];
    return undefined(fmt::format("there is no {} item", index < 0 ? "previous" : "next"));
  };
  if (name == "index") return Value(loop.index + 1);
  if (name == "index0") return Value(loop.index);
  if (name == "revindex") return Value(size - loop.index);
  if (name == "revindex0") return Value(size - loop.index - 1);
  if (name == "first") return Value(loop.index == 0);
  if (name == "last") return Value(loop.index + 1 == size);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(int64_t{1});  // deeper ones are those of recursive loops
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return at(loop.index - 1);
  if (name == "nextitem") return at(loop.index + 1);
  return undefined(fmt::format("'loop' has no attribute '{}'", shown(name)));
}

}  // namespace

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
  spend(extent_of(value).size);
  Text out = text_of(value);
  spend(0, static_cast<int64_t>(out.bytes.size()));
  return out;
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

Value Interpreter::evaluate(const Expression& node) {
  if (++depth_ > kMaxCalls) fail(fmt::format("more than {} calls in each other", kMaxCalls));
  spend(1);
  line_ = node.line;
  Value value = value_of(node);
  --depth_;
  return value;
}

Value Interpreter::value_of(const Expression& node) {
  const auto part = [&](size_t index) { return evaluate(*node.parts[index]); };
  if (node.form == Form::literal) return node.value;
  if (node.form == Form::name) {
    const Value* value = find(node.text);
    return value != nullptr ? *value
                            : undefined(fmt::format("'{}' is undefined", shown(node.text)));
  }
  if (node.form == Form::list) return list(values_of(node));
  if (node.form == Form::tuple) return list(values_of(node), List::Kind::tuple);
  if (node.form == Form::dict) return dict_of(node);
  if (node.form == Form::compare) return compared(node);
  if (node.form == Form::slice) return slice(node);
  if (node.form == Form::concat) {
    Text joined;
    for (const ExpressionPtr& each : node.parts) joined.append(written(evaluate(*each)));
    return text(std::move(joined));
  }
  if (node.form == Form::filter) {
    const Value input = node.parts[0] ? part(0) : filtered_;
    return filter(node.text, input, arguments_of(node));
  }
  const Value first = part(0);
  switch (node.form) {
    case Form::either:
      return first.is_true() ? first : part(1);
    case Form::both:
      return first.is_true() ? part(1) : first;
    case Form::negation:
      return Value(!first.is_true());
    case Form::arithmetic:
      return binary(node.text, first, part(1));
    case Form::sign:
      return signed_value(node.text, first);
    case Form::conditional:
      if (first.is_true()) return part(1);
      if (node.parts[2]) return part(2);
      return undefined("an expression with 'if' has no 'else' and is undefined");
    case Form::attribute:
      return attribute(first, node.text);
    case Form::item:
      return item(first, part(1));
    case Form::test:
      return test(node.text, first, arguments_of(node));
    default:
      return call(first, arguments_of(node));
  }
}

std::vector<Value> Interpreter::values_of(const Expression& node) {
  std::vector<Value> values;
  for (const ExpressionPtr& part : node.parts) values.push_back(evaluate(*part));
  return values;
}

Value Interpreter::dict_of(const Expression& node) {
  Dict result;
  for (size_t i = 0; i < node.parts.size(); i += 2) {
    Value key = evaluate(*node.parts[i]);
    if (key.as_text() == nullptr && !key.is_number() && !key.is_none()) {
      fail(fmt::format("a key of a dictionary is {}", key.type_name()));
    }
    spend(std::ssize(result.entries) / 8);
    result.set(std::move(key), evaluate(*node.parts[i + 1]));
  }
  return dict(std::move(result));
}

Value Interpreter::signed_value(std::string_view sign, const Value& value) {
  if (!defined(value).is_number()) fail(fmt::format("{} of {}", sign, value.type_name()));
  if (sign == "+") return value.is_integer() ? Value(value.integer()) : value;
  if (!value.is_integer()) return Value(-value.real());
  return binary("-", Value(int64_t{0}), value);
}

Value Interpreter::compared(const Expression& node) {
  Value left = evaluate(*node.parts[0]);
  for (size_t i = 1; i < node.parts.size(); ++i) {
    Value right = evaluate(*node.parts[i]);
    if (!compare(node.names[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

/// As Python's slice.indices().
Value Interpreter::slice(const Expression& node) {
  const Value object = evaluate(*node.parts[0]);
  const Text* whole = defined(object).as_text();
  const List* all = object.as_list();
  if (whole != nullptr) spend(extent_of(object).size);
  if (whole == nullptr && all == nullptr) fail(fmt::format("a slice of {}", object.type_name()));
  const auto bound = [&](size_t part) -> std::optional<int64_t> {
    const Value value = node.parts[part] ? evaluate(*node.parts[part]) : Value::none();
    return value.is_none() ? std::nullopt : std::optional(integer_argument(value, "a slice"));
  };
  const std::optional<int64_t> from = bound(1), to = bound(2);
  const int64_t step = bound(3).value_or(1);
  if (step == 0) fail("the step of a slice is 0");
  const int64_t size = whole != nullptr ? length_of(whole->bytes) : std::ssize(all->items);
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

Arguments Interpreter::arguments_of(const Expression& node) {
  Arguments given;
  for (size_t i = 1; i < node.parts.size(); ++i) {
    Value value = evaluate(*node.parts[i]);
    const std::string name = node.names.empty() ? "" : node.names[i];
    if (name.empty()) {
      given.values.push_back(std::move(value));
    } else if (name == "*") {
      const std::shared_ptr<const List> all = elements(value);
      given.values.insert(given.values.end(), all->items.begin(), all->items.end());
    } else if (name == "**") {
      if (value.as_dict() == nullptr) fail("** takes a dictionary");
      for (const auto& [key, entry] : value.as_dict()->entries) {
        given.named.emplace_back(text_argument(key, "the name of an argument").bytes, entry);
      }
    } else {
      given.named.emplace_back(name, std::move(value));
    }
  }
  return given;
}

Value Interpreter::filter(std::string_view name, const Value& input, const Arguments& arguments) {
  for (const Callables table : {kValueFilters, kTextFilters, kListFilters}) {
    if (const Callable* found = find_callable(table, name)) return invoke(*found, input, arguments);
  }
  fail(fmt::format("the filter '{}' is not supported", shown(name)));
}

Value Interpreter::test(std::string_view name, const Value& input, const Arguments& arguments) {
  const Callable* found = find_callable(kTests, name);
  if (found == nullptr) fail(fmt::format("the test '{}' is not supported", shown(name)));
  return invoke(*found, input, arguments);
}

Value Interpreter::invoke(const Callable& callee, const Value& self, const Arguments& arguments) {
  if (callee.parameters[0] != Callable::kAny) {
    const auto most = std::ranges::find(callee.parameters, "") - callee.parameters.begin();
    if (std::ssize(arguments.values) + std::ssize(arguments.named) > most) {
      fail(fmt::format("'{}' takes at most {} here", callee.name, counted(most, "argument")));
    }
    for (const auto& argument : arguments.named) {
      const auto known = std::span(callee.parameters).first(static_cast<size_t>(most));
      if (std::ranges::find(known, argument.first) != known.end()) continue;
      fail(fmt::format("'{}' takes no argument '{}' here", callee.name, shown(argument.first)));
    }
  }
  return callee.function({*this, callee, self, arguments});
}

std::shared_ptr<const List> Interpreter::elements(const Value& value) {
  if (const auto* list = value.get<Value::ListPointer>()) {
    spend(std::ssize((*list)->items));
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
  if (const Callable* method = find_callable(methods_of(object), name)) {
    return Value(Function{method, std::make_shared<const Value>(object)});
  }
  if (const auto* loop = object.get<std::shared_ptr<Loop>>()) return loop_attribute(**loop, name);
  const auto* space = object.get<std::shared_ptr<Namespace>>();
  const Dict* dict = space != nullptr ? &(*space)->attributes : object.as_dict();
  if (dict != nullptr) {
    spend(std::ssize(dict->entries) / 8);
    if (const Value* value = dict->find(Value::text(std::string(name)))) return *value;
  }
  return undefined(
      fmt::format("'{}' has no attribute or method '{}'", object.type_name(), shown(name)));
}

Value Interpreter::item(const Value& object, const Value& index) {
  defined(object);
  if (const Dict* dict = object.as_dict()) {
    spend(std::ssize(dict->entries) / 8 + extent_of(index).size);
    if (const Value* value = dict->find(index)) return *value;
  }
  if (const Text* name = index.as_text()) return attribute(object, name->bytes);
  const List* list = object.as_list();
  const Text* whole = object.as_text();
  const bool is_ordered = (list != nullptr && list->is_ordered()) || whole != nullptr;
  if (!index.is_integer()) {
    return undefined(fmt::format("'{}' has no element {}", object.type_name(), index.type_name()));
  }
  if (is_ordered) {
    const int64_t size = list != nullptr ? std::ssize(list->items) : length_of(whole->bytes);
    const int64_t at = index.integer() < 0 ? index.integer() + size : index.integer();
    if (at >= 0 && at < size) {
      if (list != nullptr) return list->items[static_cast<size_t>(at)];
      spend(extent_of(object).size);
      return text(whole->slice(byte_of(whole->bytes, at), byte_of(whole->bytes, at + 1)));
    }
  }
  return undefined(fmt::format("'{}' has no element {}", object.type_name(), index.integer()));
}

}  // namespace fp8train::jinja
