// Methods of texts, dictionaries and lists, as Python has them.

#include <fmt/format.h>

#include <algorithm>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::jinja {
namespace methods {
namespace {

const Text& text_at(Interpreter& interpreter, const Arguments& arguments, size_t position) {
  const Value* value = arguments.find(position, "");
  return interpreter.text_argument(value == nullptr ? Value() : *value, "a method of a text");
}

/// The number at this position, or with this name.
int64_t number_at(Interpreter& interpreter, const Arguments& arguments, size_t position,
                  std::string_view name) {
  const Value* value = arguments.find(position, name);
  return value == nullptr ? -1 : interpreter.integer_argument(*value, name);
}

template <bool at_start, bool at_end>
Value strip(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* given = arguments.find(0, "chars");
  const bool has_characters = given != nullptr && !given->is_none();
  const std::string* characters =
      has_characters ? &interpreter.text_argument(*given, "strip()").bytes : nullptr;
  if (has_characters) interpreter.spend(extent_of(*given).size, 0);
  return interpreter.text(stripped(*self.as_text(), at_start, at_end, characters));
}

/// The words of a text, with at most `most` cuts, of which the first is the nearest to the start.
std::vector<Text> words_of(const Text& whole, int64_t most) {
  const std::string_view text = whole.bytes;
  std::vector<Text> words;
  size_t at = tokenizers::spaces_at_start(text, is_python_space);
  for (; at < text.size(); --most) {
    const size_t end = most == 0 ? text.size() : at + end_of_first_word(text.substr(at));
    words.push_back(whole.slice(at, end));
    at = end + tokenizers::spaces_at_start(text.substr(end), is_python_space);
  }
  return words;
}

/// The same with the first cut nearest to the end.
std::vector<Text> words_from_end(const Text& whole, int64_t most) {
  const std::string_view text = whole.bytes;
  std::vector<Text> words;
  size_t end = tokenizers::without_spaces_at_end(text, is_python_space);
  for (; end > 0; --most) {
    const size_t at = most == 0 ? 0 : start_of_last_word(text.substr(0, end));
    words.push_back(whole.slice(at, end));
    end = tokenizers::without_spaces_at_end(text.substr(0, at), is_python_space);
  }
  std::reverse(words.begin(), words.end());
  return words;
}

std::vector<Text> parts_of(const Text& whole, const std::string& mark, int64_t most) {
  std::vector<Text> parts;
  size_t begin = 0;
  for (; most != 0; --most) {
    const size_t at = find_in(whole.bytes, mark, begin);
    if (at == std::string::npos) break;
    parts.push_back(whole.slice(begin, at));
    begin = at + mark.size();
  }
  parts.push_back(whole.slice(begin, whole.bytes.size()));
  return parts;
}

std::vector<Text> parts_from_end(const Text& whole, const std::string& mark, int64_t most) {
  std::vector<Text> parts;
  size_t end = whole.bytes.size();
  for (; most != 0 && end >= mark.size(); --most) {
    const size_t at = std::string_view(whole.bytes).substr(0, end).rfind(mark);
    if (at == std::string::npos) break;
    parts.push_back(whole.slice(at + mark.size(), end));
    end = at;
  }
  parts.push_back(whole.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

/// A search from the end compares byte by byte.
void spend_search_from_end(Interpreter& interpreter, std::string_view text, std::string_view part) {
  constexpr size_t kBytesOfStep = 4096;
  const size_t steps = text.size() / 64 + text.size() / kBytesOfStep * part.size();
  interpreter.spend(static_cast<int64_t>(std::min<size_t>(steps, INT64_MAX)), 0);
}

template <bool from_end>
Value split(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* mark = arguments.find(0, "sep");
  const int64_t most = number_at(interpreter, arguments, 1, "maxsplit");
  std::vector<Text> parts;
  if (mark == nullptr || mark->is_none()) {
    parts = from_end ? words_from_end(*self.as_text(), most) : words_of(*self.as_text(), most);
  } else {
    const std::string& text = interpreter.text_argument(*mark, "split()").bytes;
    if (text.empty()) interpreter.fail("split() at an empty text");
    if (from_end) spend_search_from_end(interpreter, self.as_text()->bytes, text);
    parts = from_end ? parts_from_end(*self.as_text(), text, most)
                     : parts_of(*self.as_text(), text, most);
  }
  interpreter.spend(static_cast<int64_t>(parts.size()), 0);
  std::vector<Value> values;
  for (Text& part : parts) values.push_back(interpreter.text(std::move(part)));
  return interpreter.list(std::move(values));
}

bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

Value split_lines(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Text& whole = *self.as_text();
  const std::string_view text = whole.bytes;
  const bool keeps_ends = arguments.flag(0, "keepends", false);
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const tokenizers::CodePoint c = tokenizers::whole_code_point_at(text, at);
    const size_t next = at + (text.substr(at).starts_with("\r\n") ? 2 : c.bytes);
    if (ends_line(c.value)) {
      lines.push_back(interpreter.text(whole.slice(begin, keeps_ends ? next : at)));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(interpreter.text(whole.slice(begin, text.size())));
  return interpreter.list(std::move(lines));
}

template <bool at_end>
Value has_part(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string& text = self.as_text()->bytes;
  const auto fits = [&](const Value& part) {
    const std::string& wanted = interpreter.text_argument(part, "a method of a text").bytes;
    return at_end ? text.ends_with(wanted) : text.starts_with(wanted);
  };
  const Value* given = arguments.find(0, "");
  if (given == nullptr || arguments.values.size() > 1) {
    interpreter.fail("startswith() and endswith() take one text here");
  }
  const List* several = given->as_list();
  if (several == nullptr) return Value(fits(*given));
  if (several->kind != List::Kind::tuple) interpreter.fail("a method of a text takes a tuple");
  interpreter.spend(several->extent.size, 0);
  return Value(std::any_of(several->items.begin(), several->items.end(), fits));
}

template <bool at_end>
Value remove_part(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Text& text = *self.as_text();
  const std::string& part = text_at(interpreter, arguments, 0).bytes;
  const bool has = at_end ? text.bytes.ends_with(part) : text.bytes.starts_with(part);
  if (!has) return self;
  const size_t size = text.bytes.size();
  return interpreter.text(at_end ? text.slice(0, size - part.size())
                                 : text.slice(part.size(), size));
}

Value replace(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return interpreter.filter("replace", self, arguments);
}

template <bool from_end>
Value find(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string& text = self.as_text()->bytes;
  const std::string& part = text_at(interpreter, arguments, 0).bytes;
  if (arguments.values.size() > 1) interpreter.fail("find() takes one text here");
  if (from_end) spend_search_from_end(interpreter, text, part);
  const size_t at = from_end ? text.rfind(part) : find_in(text, part, 0);
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(length_of(std::string_view(text).substr(0, at)));
}

Value count(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string& part = text_at(interpreter, arguments, 0).bytes;
  if (part.empty()) return Value(length_of(self.as_text()->bytes) + 1);
  return Value(static_cast<int64_t>(parts_of(*self.as_text(), part, -1).size()) - 1);
}

Value join(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* items = arguments.find(0, "");
  if (items == nullptr) interpreter.fail("join() takes a list");
  const std::shared_ptr<const List> parts = interpreter.elements(*items);
  for (const Value& item : parts->items) {
    interpreter.text_argument(item, "join()");
  }
  return interpreter.filter("join", *items, {{self}, {}});
}

template <std::string (*change)(std::string_view)>
Value changed(Interpreter& interpreter, const Value& self, const Arguments& /*arguments*/) {
  return interpreter.text(self.as_text()->changed_to(change(self.as_text()->bytes)));
}

template <bool (*holds)(std::string_view)>
Value whether(Interpreter& /*interpreter*/, const Value& self, const Arguments& /*arguments*/) {
  return Value(holds(self.as_text()->bytes));
}

Value get(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* key = arguments.find(0, "key");
  if (key == nullptr) interpreter.fail("get() takes a key");
  interpreter.spend(static_cast<int64_t>(self.as_dict()->entries.size() / 8), 0);
  const Value* value = self.as_dict()->find(*key);
  if (value != nullptr) return *value;
  const Value* otherwise = arguments.find(1, "default");
  return otherwise == nullptr ? Value::none() : *otherwise;
}

Value items(Interpreter& interpreter, const Value& self, const Arguments& /*arguments*/) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.as_dict()->entries) {
    pairs.push_back(interpreter.list({key, value}, List::Kind::tuple));
  }
  return interpreter.list(std::move(pairs), List::Kind::view);
}

Value keys(Interpreter& interpreter, const Value& self, const Arguments& /*arguments*/) {
  return interpreter.list(interpreter.elements(self)->items, List::Kind::view);
}

Value values(Interpreter& interpreter, const Value& self, const Arguments& /*arguments*/) {
  std::vector<Value> all;
  for (const auto& entry : self.as_dict()->entries) all.push_back(entry.second);
  return interpreter.list(std::move(all), List::Kind::view);
}

Value list_count(Interpreter& /*interpreter*/, const Value& self, const Arguments& arguments) {
  const Value* wanted = arguments.find(0, "");
  const std::vector<Value>& all = self.as_list()->items;
  return Value(static_cast<int64_t>(std::count_if(all.begin(), all.end(), [&](const Value& item) {
    return wanted != nullptr && equal(item, *wanted);
  })));
}

Value list_index(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* wanted = arguments.find(0, "");
  const std::vector<Value>& all = self.as_list()->items;
  for (size_t i = 0; i < all.size() && wanted != nullptr; ++i) {
    if (equal(all[i], *wanted)) return Value(static_cast<int64_t>(i));
  }
  interpreter.fail("index(): the list has no such element");
}

/// Jinja's sandbox refuses what would change a list or a dictionary.
Value refused(Interpreter& interpreter, const Value& self, const Arguments& /*arguments*/) {
  interpreter.fail(
      fmt::format("a method would change {}, which Jinja's sandbox refuses; a "
                  "namespace can be changed",
                  self.type_name()));
}

constexpr Entry<Value> kTextMethods[] = {
    {"strip", strip<true, true>, 1},
    {"lstrip", strip<true, false>, 1},
    {"rstrip", strip<false, true>, 1},
    {"split", split<false>, 2},
    {"rsplit", split<true>, 2},
    {"splitlines", split_lines, 1},
    {"startswith", has_part<false>, 1},
    {"endswith", has_part<true>, 1},
    {"removeprefix", remove_part<false>, 1},
    {"removesuffix", remove_part<true>, 1},
    {"replace", replace, 3},
    {"find", find<false>, 1},
    {"rfind", find<true>, 1},
    {"count", count, 1},
    {"join", join, 1},
    {"upper", changed<upper>, 0},
    {"lower", changed<lower>, 0},
    {"title", changed<title>, 0},
    {"capitalize", changed<capitalized>, 0},
    {"isdigit", whether<is_digits>, 0},
    {"isspace", whether<is_spaces>, 0},
};
constexpr Entry<Value> kDictMethods[] = {
    {"get", get, 2},         {"items", items, 0},          {"keys", keys, 0},
    {"values", values, 0},   {"update", refused, 100},     {"pop", refused, 100},
    {"clear", refused, 100}, {"setdefault", refused, 100}, {"popitem", refused, 100},
};
constexpr Entry<Value> kListMethods[] = {
    {"count", list_count, 1}, {"index", list_index, 1}, {"append", refused, 100},
    {"extend", refused, 100}, {"insert", refused, 100}, {"pop", refused, 100},
    {"remove", refused, 100}, {"clear", refused, 100},  {"reverse", refused, 100},
    {"sort", refused, 100},
};

const Entry<Value>* method_of(const Value& object, std::string_view name) {
  if (object.as_text() != nullptr) return entry_in(kTextMethods, name);
  if (object.as_dict() != nullptr) return entry_in(kDictMethods, name);
  if (object.as_list() != nullptr) return entry_in(kListMethods, name);
  return nullptr;
}

}  // namespace
}  // namespace methods

bool has_method(const Value& object, std::string_view name) {
  return methods::method_of(object, name) != nullptr;
}

Value call_method(Interpreter& interpreter, const Value& self, const std::string& name,
                  const Arguments& arguments) {
  interpreter.spend(extent_of(self).size, 0);
  const Entry<Value>* method = methods::method_of(self, name);
  interpreter.require_at_most(arguments, method->max_arguments, name);
  return method->function(interpreter, self, arguments);
}

}  // namespace fp8train::jinja
