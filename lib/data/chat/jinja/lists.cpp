// The filters of lists (Jinja 3, filters.py), and the methods of Python's lists and dictionaries.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace fp8train::jinja {
namespace lists {
namespace {

using Items = std::vector<Value>;

/// Follows "a.b.0" from a value.
Value at_path(Interpreter& run, Value value, const Value& path) {
  if (path.is_integer()) return run.item(value, path);
  std::string_view rest = run.text_argument(path, "an attribute").bytes;
  for (;;) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = error == std::errc() && end == name.data() + name.size();
    value = run.item(value, is_index ? Value(index) : Value::text(std::string(name)));
    if (name.size() == rest.size()) return value;
    rest.remove_prefix(name.size() + 1);
  }
}

/// The key by which elements are compared: an attribute where one is given, texts in lower case
/// where case does not count.
Value key_of(Interpreter& run, const Value& item, const Value* path, bool with_case) {
  if (path != nullptr && text_of(*path).bytes.find(',') != std::string::npos) {
    run.fail("several attributes are not supported");
  }
  Value key = path == nullptr || path->is_none() ? item : at_path(run, item, *path);
  if (with_case || key.as_text() == nullptr) return key;
  return run.text(lower(key.as_text()->bytes));
}

Items copy_of(const Call& call) {
  Items items = call.run.elements(call.self)->items;
  call.run.spend(std::ssize(items));
  return items;
}

/// The same, but nothing of what is false, also where it has no elements: as map and select do.
Items copy_if_true(const Call& call) {
  return call.self.is_true() ? copy_of(call) : Items();
}

Value generator(const Call& call, Items items) {
  return call.run.list(std::move(items), List::Kind::generator);
}

struct Keyed {
  Value key, item;
};

/// The elements with their keys. The parameters: whether case counts, and an attribute.
std::vector<Keyed> keyed(const Call& call, size_t with_case, size_t path) {
  std::vector<Keyed> all;
  for (Value& item : copy_of(call)) {
    Value key = key_of(call.run, item, call.find(path), call.flag(with_case));
    call.run.spend(extent_of(key).size);
    all.push_back({std::move(key), std::move(item)});
  }
  return all;
}

Value view(const Call& call, Items items) {
  return call.run.list(std::move(items), List::Kind::view);
}

Value sorted(const Call& call, std::vector<Keyed> all, bool descends) {
  bool comparable = true;
  int64_t size = 1;
  for (const Keyed& each : all) size += extent_of(each.key).size;
  call.run.spend(size * 20);
  std::ranges::stable_sort(all, [&](const Keyed& a, const Keyed& b) {
    return descends ? less(b.key, a.key, comparable) : less(a.key, b.key, comparable);
  });
  if (!comparable) call.run.fail("the elements to sort have no order");
  Items items;
  for (Keyed& each : all) items.push_back(std::move(each.item));
  return call.run.list(std::move(items));
}

Value sort(const Call& call) {
  return sorted(call, keyed(call, 1, 2), call.flag(0));
}

Value sort_dict(const Call& call) {
  if (call.self.as_dict() == nullptr) call.run.fail("dictsort takes a dictionary");
  const Value* by = call.find(1);
  const bool by_value = by != nullptr && text_of(*by).bytes == "value";
  std::vector<Keyed> all;
  for (const auto& [key, value] : call.self.as_dict()->entries) {
    all.push_back({key_of(call.run, by_value ? value : key, nullptr, call.flag(0)),
                   call.run.list({key, value}, List::Kind::tuple)});
  }
  return sorted(call, std::move(all), call.flag(2));
}

Items pairs_of(const Call& call) {
  Items pairs;
  for (const auto& [key, value] : call.self.as_dict()->entries) {
    pairs.push_back(call.run.list({key, value}, List::Kind::tuple));
  }
  return pairs;
}

Value items(const Call& call) {
  if (call.self.is_undefined()) return generator(call, {});
  if (call.self.as_dict() == nullptr) call.run.fail("items takes a dictionary");
  return generator(call, pairs_of(call));
}

template <bool is_last>
Value end_of(const Call& call) {
  const auto all = call.run.elements(call.self);
  if (!all->items.empty()) return is_last ? all->items.back() : all->items.front();
  return Value(Undefined{fmt::format("the {} of no elements is undefined", call.callee.name)});
}

Value join(const Call& call) {
  const Value* mark = call.find(0);
  const Text between = mark == nullptr ? Text() : call.run.written(*mark);
  const std::shared_ptr<const List> all = call.run.elements(call.self);
  Text out;
  bool is_first = true;
  for (const Value& item : all->items) {
    if (!std::exchange(is_first, false)) out.append(between);
    call.run.spend(1, std::ssize(between.bytes));
    out.append(call.run.written(key_of(call.run, item, call.find(1), true)));
  }
  return call.run.text(std::move(out));
}

Value reverse(const Call& call) {
  Items items = copy_of(call);
  std::ranges::reverse(items);
  if (call.self.as_text() == nullptr) return generator(call, std::move(items));
  Text out;
  for (const Value& item : items) out.append(*item.as_text());
  return call.run.text(std::move(out));
}

Value unique(const Call& call) {
  Items keys, items;
  for (auto& [key, item] : keyed(call, 0, 1)) {
    call.run.spend(std::ssize(keys) + extent_of(key).size);
    const auto is_key = [&key = key](const Value& seen) { return equal(seen, key); };
    if (std::ranges::any_of(keys, is_key)) continue;
    keys.push_back(std::move(key));
    items.push_back(std::move(item));
  }
  return generator(call, std::move(items));
}

template <bool largest>
Value extreme(const Call& call) {
  const std::vector<Keyed> all = keyed(call, 0, 1);
  bool comparable = true;
  const auto is_less = [&](const Keyed& a, const Keyed& b) {
    return less(a.key, b.key, comparable);
  };
  const auto best =
      largest ? std::ranges::max_element(all, is_less) : std::ranges::min_element(all, is_less);
  if (!comparable) call.run.fail("the elements have no order");
  if (best != all.end()) return best->item;
  return Value(Undefined{"the extreme of no elements is undefined"});
}

Value sum(const Call& call) {
  const Value* start = call.find(1);
  Value total = start == nullptr ? Value(int64_t{0}) : *start;
  for (const Value& item : copy_of(call)) {
    total = call.run.binary("+", total, key_of(call.run, item, call.find(0), true));
  }
  return total;
}

/// The arguments behind the first `count`, which go to a filter or test that is named.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.values.erase(rest.values.begin(), rest.values.begin() + static_cast<int64_t>(count));
  return rest;
}

Value map(const Call& call) {
  const Arguments& given = call.arguments;
  const Value* path = given.values.empty() ? given.find(0, "attribute") : nullptr;
  if (path == nullptr && given.values.empty()) {
    call.run.fail("map takes the name of a filter or an attribute");
  }
  Items out;
  for (const Value& item : copy_if_true(call)) {
    if (path == nullptr) {
      const std::string& name = call.run.text_argument(given.values[0], "map").bytes;
      out.push_back(call.run.filter(name, item, rest_of(given, 1)));
      continue;
    }
    Value value = at_path(call.run, item, *path);
    const Value* otherwise = given.find(1, "default");
    if (value.is_undefined() && otherwise != nullptr) value = *otherwise;
    out.push_back(std::move(value));
  }
  return generator(call, std::move(out));
}

/// select, reject, selectattr and rejectattr.
template <bool wanted, bool by_attribute>
Value select(const Call& call) {
  constexpr size_t kTest = by_attribute ? 1 : 0;
  const Items& given = call.arguments.values;
  if (given.size() < kTest) call.run.fail("selectattr takes an attribute");
  Items out;
  for (Value& item : copy_if_true(call)) {
    Value value = by_attribute ? at_path(call.run, item, given[0]) : item;
    if (given.size() > kTest) {
      const std::string& name = call.run.text_argument(given[kTest], "select").bytes;
      value = call.run.test(name, value, rest_of(call.arguments, kTest + 1));
    }
    if (value.is_true() == wanted) out.push_back(std::move(item));
  }
  return generator(call, std::move(out));
}

Value batch(const Call& call) {
  const int64_t size = call.run.integer_argument(call.at(0), "batch");
  const Value* fill = call.find(1);
  if (size < 1) call.run.fail("batch takes a number from 1 on");
  Items out, line;
  const auto end_line = [&] { out.push_back(call.run.list(std::exchange(line, {}))); };
  for (Value& item : copy_of(call)) {
    if (std::ssize(line) == size) end_line();
    line.push_back(std::move(item));
  }
  while (fill != nullptr && !line.empty() && std::ssize(line) < size) {
    call.run.spend(1, sizeof(Value));
    line.push_back(*fill);
  }
  if (!line.empty()) end_line();
  return generator(call, std::move(out));
}

Value get(const Call& call) {
  call.run.spend(std::ssize(call.self.as_dict()->entries) / 8);
  if (const Value* value = call.self.as_dict()->find(call.at(0))) return *value;
  const Value* otherwise = call.find(1);
  return otherwise == nullptr ? Value::none() : *otherwise;
}

Value values(const Call& call) {
  Items all;
  for (const auto& entry : call.self.as_dict()->entries) all.push_back(entry.second);
  return view(call, std::move(all));
}

Value count(const Call& call) {
  return Value(std::ranges::count_if(call.self.as_list()->items,
                                     [&](const Value& item) { return equal(item, call.at(0)); }));
}

Value index(const Call& call) {
  const Items& all = call.self.as_list()->items;
  const auto found =
      std::ranges::find_if(all, [&](const Value& item) { return equal(item, call.at(0)); });
  if (found == all.end()) call.run.fail("index(): the list has no such element");
  return Value(static_cast<int64_t>(found - all.begin()));
}

/// Jinja's sandbox refuses what would change a list or a dictionary.
Value refused(const Call& call) {
  call.run.fail(
      fmt::format("a method would change {}, which Jinja's sandbox refuses; a "
                  "namespace can be changed",
                  call.self.type_name()));
}

constexpr Callable kFilters[] = {
    {"list", [](const Call& call) { return call.run.list(copy_of(call)); }},
    {"first", end_of<false>},
    {"last", end_of<true>},
    {"join", join, {"d", "attribute"}},
    {"items", items},
    {"sort", sort, {"reverse", "case_sensitive", "attribute"}},
    {"dictsort", sort_dict, {"case_sensitive", "by", "reverse"}},
    {"reverse", reverse},
    {"unique", unique, {"case_sensitive", "attribute"}},
    {"min", extreme<false>, {"case_sensitive", "attribute"}},
    {"max", extreme<true>, {"case_sensitive", "attribute"}},
    {"sum", sum, {"attribute", "start"}},
    {"map", map, {Callable::kAny}},
    {"select", select<true, false>, {Callable::kAny}},
    {"reject", select<false, false>, {Callable::kAny}},
    {"selectattr", select<true, true>, {Callable::kAny}},
    {"rejectattr", select<false, true>, {Callable::kAny}},
    {"batch", batch, {"linecount", "fill_with"}},
};

constexpr auto kAny = Callable::kAny;
constexpr Callable kDictMethods[] = {
    {"get", get, {"key", "default"}},
    {"items", [](const Call& call) { return view(call, pairs_of(call)); }},
    {"keys", [](const Call& call) { return view(call, call.run.elements(call.self)->items); }},
    {"values", values},
    {"update", refused, {kAny}},
    {"pop", refused, {kAny}},
    {"clear", refused, {kAny}},
    {"popitem", refused, {kAny}},
    {"setdefault", refused, {kAny}}};

constexpr Callable kListMethods[] = {{"count", count, {"value"}},  {"index", index, {"value"}},
                                     {"append", refused, {kAny}},  {"extend", refused, {kAny}},
                                     {"insert", refused, {kAny}},  {"pop", refused, {kAny}},
                                     {"remove", refused, {kAny}},  {"clear", refused, {kAny}},
                                     {"reverse", refused, {kAny}}, {"sort", refused, {kAny}}};

}  // namespace
}  // namespace lists

constinit const Callables kListFilters = lists::kFilters;
constinit const Callables kListMethods = lists::kListMethods;
constinit const Callables kDictMethods = lists::kDictMethods;

}  // namespace fp8train::jinja
