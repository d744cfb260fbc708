// The filters of lists.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace fp8train::jinja {
namespace list_filters {
namespace {

/// Follows "a.b.0" from a value.
Value at_path(Interpreter& interpreter, Value value, const Value& path) {
  if (path.is_integer()) return interpreter.item(value, path);
  std::string_view rest = interpreter.text_argument(path, "an attribute").bytes;
  for (;;) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view name = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = error == std::errc() && end == name.data() + name.size();
    value = interpreter.item(value, is_index ? Value(index) : Value::text(std::string(name)));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

/// The key by which elements are compared: an attribute where one is given, texts in lower case
/// where case does not count.
Value key_of(Interpreter& interpreter, const Value& item, const Value* path, bool with_case) {
  if (path != nullptr && text_of(*path).bytes.find(',') != std::string::npos) {
    interpreter.fail("several attributes are not supported");
  }
  Value key = path == nullptr || path->is_none() ? item : at_path(interpreter, item, *path);
  if (with_case || key.as_text() == nullptr) return key;
  return interpreter.text(lower(key.as_text()->bytes));
}

std::vector<Value> copy_of(Interpreter& interpreter, const Value& input) {
  std::vector<Value> items = interpreter.elements(input)->items;
  interpreter.spend(static_cast<int64_t>(items.size()), 0);
  return items;
}

/// The same, but nothing of what is false, also where it has no elements: as map and select do.
std::vector<Value> copy_if_true(Interpreter& interpreter, const Value& input) {
  return input.is_true() ? copy_of(interpreter, input) : std::vector<Value>();
}

Value sorted_by(Interpreter& interpreter, std::vector<std::pair<Value, Value>> keyed,
                bool descends) {
  bool comparable = true;
  int64_t size = 1;
  for (const auto& [key, item] : keyed) size += extent_of(key).size;
  interpreter.spend(size * 20, 0);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return descends ? less(b.first, a.first, comparable) : less(a.first, b.first, comparable);
  });
  if (!comparable) interpreter.fail("the elements to sort have no order");
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return interpreter.list(std::move(items));
}

Value sort(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Value* path = arguments.find(2, "attribute");
  const bool with_case = arguments.flag(1, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : copy_of(interpreter, input)) {
    Value key = key_of(interpreter, item, path, with_case);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return sorted_by(interpreter, std::move(keyed), arguments.flag(0, "reverse", false));
}

Value sort_dict(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (input.as_dict() == nullptr) interpreter.fail("dictsort takes a dictionary");
  const Value* by = arguments.find(1, "by");
  const bool by_value = by != nullptr && text_of(*by).bytes == "value";
  const bool with_case = arguments.flag(0, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.as_dict()->entries) {
    keyed.emplace_back(key_of(interpreter, by_value ? value : key, nullptr, with_case),
                       interpreter.list({key, value}, List::Kind::tuple));
  }
  return sorted_by(interpreter, std::move(keyed), arguments.flag(2, "reverse", false));
}

Value items(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  if (input.is_undefined()) return interpreter.list({}, List::Kind::generator);
  if (input.as_dict() == nullptr) interpreter.fail("items takes a dictionary");
  const Value pairs = call_method(interpreter, input, "items", {});
  return interpreter.list(pairs.as_list()->items, List::Kind::generator);
}

Value list(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  return interpreter.list(copy_of(interpreter, input));
}

Value first(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  const auto all = interpreter.elements(input);
  if (all->items.empty()) return Value(Undefined{"the first of no elements is undefined"});
  return all->items.front();
}

Value last(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  const auto all = interpreter.elements(input);
  if (all->items.empty()) return Value(Undefined{"the last of no elements is undefined"});
  return all->items.back();
}

Value join(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Value *mark = arguments.find(0, "d"), *path = arguments.find(1, "attribute");
  const Text between = mark == nullptr ? Text() : interpreter.written(*mark);
  Text out;
  const auto all = interpreter.elements(input);
  for (size_t i = 0; i < all->items.size(); ++i) {
    if (i > 0) out.append(between);
    interpreter.spend(1, static_cast<int64_t>(between.bytes.size()));
    out.append(interpreter.written(key_of(interpreter, all->items[i], path, true)));
  }
  return interpreter.text(std::move(out));
}

Value reverse(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  std::vector<Value> items = copy_of(interpreter, input);
  std::reverse(items.begin(), items.end());
  if (input.as_text() == nullptr) return interpreter.list(std::move(items), List::Kind::generator);
  Text out;
  for (const Value& item : items) out.append(*item.as_text());
  return interpreter.text(std::move(out));
}

Value unique(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const bool with_case = arguments.flag(0, "case_sensitive", false);
  const Value* path = arguments.find(1, "attribute");
  std::vector<Value> keys, items;
  for (Value& item : copy_of(interpreter, input)) {
    Value key = key_of(interpreter, item, path, with_case);
    interpreter.spend(static_cast<int64_t>(keys.size()) + extent_of(key).size, 0);
    const bool is_known =
        std::any_of(keys.begin(), keys.end(), [&](const Value& seen) { return equal(seen, key); });
    if (is_known) continue;
    keys.push_back(std::move(key));
    items.push_back(std::move(item));
  }
  return interpreter.list(std::move(items), List::Kind::generator);
}

template <bool largest>
Value extreme(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const bool with_case = arguments.flag(0, "case_sensitive", false);
  const Value* path = arguments.find(1, "attribute");
  Value best(Undefined{"the extreme of no elements is undefined"}), best_key;
  bool comparable = true, has_best = false;
  for (Value& item : copy_of(interpreter, input)) {
    Value key = key_of(interpreter, item, path, with_case);
    interpreter.spend(extent_of(key).size, 0);
    const bool better =
        !has_best || (largest ? less(best_key, key, comparable) : less(key, best_key, comparable));
    if (!comparable) interpreter.fail("the elements have no order");
    if (!better) continue;
    has_best = true;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best;
}

Value sum(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Value *path = arguments.find(0, "attribute"), *start = arguments.find(1, "start");
  Value total = start == nullptr ? Value(int64_t{0}) : *start;
  for (const Value& item : copy_of(interpreter, input)) {
    total = interpreter.binary("+", total, key_of(interpreter, item, path, true));
  }
  return total;
}

/// The arguments behind the first `count`, which go to a filter or test that is named.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest;
  for (size_t i = count; i < arguments.values.size(); ++i) {
    rest.values.push_back(arguments.values[i]);
  }
  rest.named = arguments.named;
  return rest;
}

Value map(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  std::vector<Value> out;
  const Value* path = arguments.values.empty() ? arguments.find(0, "attribute") : nullptr;
  if (path == nullptr && arguments.values.empty()) {
    interpreter.fail("map takes the name of a filter or an attribute");
  }
  for (const Value& item : copy_if_true(interpreter, input)) {
    if (path == nullptr) {
      const std::string& name = interpreter.text_argument(arguments.values[0], "map").bytes;
      out.push_back(interpreter.filter(name, item, rest_of(arguments, 1)));
      continue;
    }
    Value value = at_path(interpreter, item, *path);
    const Value* otherwise = arguments.find(1, "default");
    if (value.is_undefined() && otherwise != nullptr) value = *otherwise;
    out.push_back(std::move(value));
  }
  return interpreter.list(std::move(out), List::Kind::generator);
}

/// select, reject, selectattr and rejectattr.
template <bool wanted, bool by_attribute>
Value select(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  constexpr size_t kTest = by_attribute ? 1 : 0;
  if (arguments.values.size() < kTest) interpreter.fail("selectattr takes an attribute");
  std::vector<Value> out;
  for (Value& item : copy_if_true(interpreter, input)) {
    const Value value = by_attribute ? at_path(interpreter, item, arguments.values[0]) : item;
    bool holds = value.is_true();
    if (arguments.values.size() > kTest) {
      const std::string& name = interpreter.text_argument(arguments.values[kTest], "select").bytes;
      holds = interpreter.test(name, value, rest_of(arguments, kTest + 1));
    }
    if (holds == wanted) out.push_back(std::move(item));
  }
  return interpreter.list(std::move(out), List::Kind::generator);
}

Value batch(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Value *count = arguments.find(0, "linecount"), *fill = arguments.find(1, "fill_with");
  const int64_t size = interpreter.integer_argument(count == nullptr ? Value() : *count, "batch");
  if (size < 1) interpreter.fail("batch takes a number from 1 on");
  std::vector<Value> out, line;
  const auto end_line = [&] { out.push_back(interpreter.list(std::exchange(line, {}))); };
  for (Value& item : copy_of(interpreter, input)) {
    if (static_cast<int64_t>(line.size()) == size) end_line();
    line.push_back(std::move(item));
  }
  while (fill != nullptr && !line.empty() && static_cast<int64_t>(line.size()) < size) {
    interpreter.spend(1, sizeof(Value));
    line.push_back(*fill);
  }
  if (!line.empty()) end_line();
  return interpreter.list(std::move(out), List::Kind::generator);
}

constexpr Entry<Value> kFilters[] = {
    {"list", list, 0},
    {"first", first, 0},
    {"last", last, 0},
    {"join", join, 2},
    {"items", items, 0},
    {"sort", sort, 3},
    {"dictsort", sort_dict, 3},
    {"reverse", reverse, 0},
    {"unique", unique, 2},
    {"min", extreme<false>, 2},
    {"max", extreme<true>, 2},
    {"sum", sum, 2},
    {"map", map, 100},
    {"select", select<true, false>, 100},
    {"reject", select<false, false>, 100},
    {"selectattr", select<true, true>, 100},
    {"rejectattr", select<false, true>, 100},
    {"batch", batch, 2},
};

}  // namespace
}  // namespace list_filters

const Entry<Value>* find_list_filter(std::string_view name) {
  return entry_in(list_filters::kFilters, name);
}

}  // namespace fp8train::jinja
