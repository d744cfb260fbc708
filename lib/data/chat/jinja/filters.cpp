// The filters of Jinja (filters.py): {{ value | NAME }}. Those of lists are in list_filters.cpp.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace fp8train::jinja {
namespace text_filters {
namespace {

std::string text_or(Interpreter& interpreter, const Arguments& arguments, size_t position,
                    std::string_view name, std::string_view otherwise) {
  const Value* value = arguments.find(position, name);
  if (value == nullptr || value->is_none()) return std::string(otherwise);
  return interpreter.text_argument(*value, name).bytes;
}

Value trim(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Text whole = interpreter.written(input);
  const Value* given = arguments.find(0, "chars");
  const bool has_characters = given != nullptr && !given->is_none();
  const std::string* characters =
      has_characters ? &interpreter.text_argument(*given, "trim").bytes : nullptr;
  if (has_characters) interpreter.spend(extent_of(*given).size, 0);
  return interpreter.text(stripped(whole, true, true, characters));
}

template <std::string (*change)(std::string_view)>
Value changed(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  const Text whole = interpreter.written(input);
  return interpreter.text(whole.changed_to(change(whole.bytes)));
}

Value string(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  return interpreter.text(interpreter.written(input));
}

Value replace(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Text whole = interpreter.written(input);
  const Value *from = arguments.find(0, "old"), *to = arguments.find(1, "new");
  const Value* count = arguments.find(2, "count");
  if (from == nullptr || to == nullptr) interpreter.fail("replace takes two texts");
  const Text before = interpreter.written(*from), after = interpreter.written(*to);
  int64_t most =
      count == nullptr || count->is_none() ? -1 : interpreter.integer_argument(*count, "replace");
  Text out;
  size_t begin = 0;
  for (; most != 0; --most) {
    size_t at = find_in(whole.bytes, before.bytes, begin);
    if (at == std::string::npos) break;
    const size_t next = at + before.bytes.size();
    interpreter.spend(1, static_cast<int64_t>(after.bytes.size()));
    if (before.bytes.empty()) {  // in front of each character, and at the end
      out.append(after);
      if (begin == whole.bytes.size()) return interpreter.text(std::move(out));
      at = begin + byte_of(std::string_view(whole.bytes).substr(begin), 1);
      out.append(whole.slice(begin, at));
      begin = at;
      continue;
    }
    out.append(whole.slice(begin, at));
    out.append(after);
    begin = next;
  }
  out.append(whole.slice(begin, whole.bytes.size()));
  return interpreter.text(std::move(out));
}

Value default_value(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const bool is_missing =
      input.is_undefined() || (arguments.flag(1, "boolean", false) && !input.is_true());
  if (!is_missing) return input;
  const Value* otherwise = arguments.find(0, "default_value");
  return otherwise == nullptr ? interpreter.text("") : *otherwise;
}

Value to_json(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  JsonStyle style;
  style.only_ascii = arguments.flag(0, "ensure_ascii", false);
  const Value* indent = arguments.find(1, "indent");
  if (indent != nullptr && !indent->is_none()) {
    style.indent = std::clamp<int64_t>(interpreter.integer_argument(*indent, "indent"), 0, 64);
  }
  const Value* separators = arguments.find(2, "separators");
  if (separators != nullptr && !separators->is_none()) {
    const auto both = interpreter.elements(*separators);
    if (both->items.size() != 2) interpreter.fail("separators of tojson are two texts");
    style.item_separator = interpreter.text_argument(both->items[0], "tojson").bytes;
    style.key_separator = interpreter.text_argument(both->items[1], "tojson").bytes;
  }
  style.sorts_keys = arguments.flag(3, "sort_keys", false);
  interpreter.spend(extent_of(input).size,
                    extent_of(input).size * (style.indent < 0 ? 4 : 64 * style.indent + 4));
  bool fits = true;
  std::string json = json_of(input, style, fits);
  if (!fits) interpreter.fail(fmt::format("tojson of {}", input.type_name()));
  const int32_t message = message_of(input);
  return interpreter.text(message < 0 ? Text(std::move(json)) : Text(std::move(json), message));
}

Value length(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  if (const Text* text = input.as_text()) {
    interpreter.spend(extent_of(input).size, 0);
    return Value(length_of(text->bytes));
  }
  if (const Dict* dict = input.as_dict()) return Value(static_cast<int64_t>(dict->entries.size()));
  const List* list = input.as_list();
  if (list != nullptr && list->kind != List::Kind::generator) {
    return Value(static_cast<int64_t>(list->items.size()));
  }
  if (input.is_undefined()) return Value(int64_t{0});
  interpreter.fail(fmt::format("{} has no length", input.type_name()));
}

/// The whole of a text as a number, as Python reads it; nothing where it is none.
template <typename T, typename... Base>
std::optional<T> number_in(std::string_view text, Base... base) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool separates = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                           is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (!separates) digits += text[i];
  }
  T number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, base...);
  const bool is_whole = error == std::errc() && end == digits.data() + digits.size();
  return is_whole ? std::optional(number) : std::nullopt;
}

std::optional<Value> as_integer(double number) {
  if (!(std::abs(number) < 9e18)) return std::nullopt;
  return Value(static_cast<int64_t>(number));
}

Value integer(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Value* otherwise = arguments.find(0, "default");
  Value none = otherwise == nullptr ? Value(int64_t{0}) : *otherwise;
  if (arguments.find(1, "base") != nullptr) interpreter.fail("int takes no base here");
  if (interpreter.defined(input).is_integer()) return Value(input.integer());
  if (const double* number = input.get<double>()) return as_integer(*number).value_or(none);
  if (input.as_text() == nullptr) return none;
  const std::string text = stripped(*input.as_text(), true, true).bytes;
  if (const auto number = number_in<int64_t>(text, 10)) return Value(*number);
  const std::optional<double> number = number_in<double>(text);
  return number ? as_integer(*number).value_or(none) : none;
}

Value real(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Value* otherwise = arguments.find(0, "default");
  if (interpreter.defined(input).is_number()) return Value(input.real());
  if (const Text* text = input.as_text()) {
    const auto number = number_in<double>(stripped(*text, true, true).bytes);
    if (number) return Value(*number);
  }
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value absolute(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  if (const double* number = input.get<double>()) return Value(std::abs(*number));
  const int64_t number = interpreter.integer_argument(input, "abs");
  return number < 0 ? interpreter.binary("-", Value(int64_t{0}), input) : Value(number);
}

/// Half to even, as Python's round().
Value rounded_integer(int64_t number, int64_t digits) {
  if (digits >= 0) return Value(number);
  if (digits < -18) return Value(int64_t{0});
  __int128 unit = 1;
  for (; digits < 0; ++digits) unit *= 10;
  __int128 quotient = number / unit, rest = number % unit;
  if (rest < 0) {
    rest += unit;
    --quotient;
  }
  if (rest * 2 > unit || (rest * 2 == unit && quotient % 2 != 0)) ++quotient;
  return Value(static_cast<int64_t>(quotient * unit));
}

Value rounded(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!interpreter.defined(input).is_number()) interpreter.fail("round takes a number");
  const Value* precision = arguments.find(0, "precision");
  const int64_t digits =
      precision == nullptr ? 0 : interpreter.integer_argument(*precision, "round");
  const std::string method = text_or(interpreter, arguments, 1, "method", "common");
  if (input.is_integer() && method == "common") return rounded_integer(input.integer(), digits);
  constexpr int64_t kMaxDigits = 300;
  if (std::abs(std::clamp(digits, -2 * kMaxDigits, 2 * kMaxDigits)) > kMaxDigits) {
    interpreter.fail("round takes at most 300 digits");
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return Value(std::ceil(input.real() * scale) / scale);
  if (method == "floor") return Value(std::floor(input.real() * scale) / scale);
  if (digits < 0) return Value(std::nearbyint(input.real() * scale) / scale);
  return Value(std::strtod(fmt::format("{:.{}f}", input.real(), digits).c_str(), nullptr));
}

Value safe(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  Text text = interpreter.written(input);
  text.is_markup = true;
  return interpreter.text(std::move(text));
}

/// Each line but the first, and empty ones, further in.
Value indent(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Text whole = interpreter.written(input);
  const Value* width = arguments.find(0, "width");
  std::string space(4, ' ');
  if (width != nullptr && width->is_integer()) {
    space.assign(static_cast<size_t>(std::clamp<int64_t>(width->integer(), 0, 1000)), ' ');
  } else if (width != nullptr) {
    space = interpreter.text_argument(*width, "indent").bytes;
  }
  const bool first = arguments.flag(1, "first", false), blank = arguments.flag(2, "blank", false);
  whole.append(Text("\n"));
  const Value lines =
      call_method(interpreter, interpreter.text(std::move(whole)), "splitlines", {});
  Text out;
  for (const Value& line : lines.as_list()->items) {
    const bool is_first = &line == &lines.as_list()->items.front();
    const bool moves = is_first ? first : blank || !line.as_text()->bytes.empty();
    if (!is_first) out.append(Text("\n"));
    if (moves) out.append(Text(space));
    interpreter.spend(1, static_cast<int64_t>(space.size() + line.as_text()->bytes.size()));
    out.append(*line.as_text());
  }
  return interpreter.text(std::move(out));
}

Value escaped(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  return interpreter.text(interpreter.written(input).escaped());
}

Value attribute(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return interpreter.attribute(input, text_or(interpreter, arguments, 0, "name", ""));
}

constexpr Entry<Value> kFilters[] = {
    {"trim", trim, 1},
    {"upper", changed<upper>, 0},
    {"lower", changed<lower>, 0},
    {"title", changed<titled_words>, 0},
    {"capitalize", changed<capitalized>, 0},
    {"string", string, 0},
    {"replace", replace, 3},
    {"default", default_value, 2},
    {"d", default_value, 2},
    {"tojson", to_json, 4},
    {"length", length, 0},
    {"count", length, 0},
    {"int", integer, 2},
    {"float", real, 1},
    {"abs", absolute, 0},
    {"round", rounded, 2},
    {"safe", safe, 0},
    {"escape", escaped, 0},
    {"e", escaped, 0},
    {"indent", indent, 3},
    {"attr", attribute, 1},
};

}  // namespace
}  // namespace text_filters

const Entry<Value>* find_filter(std::string_view name) {
  const auto* const found = entry_in(text_filters::kFilters, name);
  return found == nullptr ? find_list_filter(name) : found;
}

}  // namespace fp8train::jinja
