// The filters of numbers and of any values (Jinja 3, filters.py): {{ value | NAME }}.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace fp8train::jinja {
namespace values {
namespace {

Value default_value(const Call& call) {
  const bool is_missing = call.self.is_undefined() || (call.flag(1) && !call.self.is_true());
  if (!is_missing) return call.self;
  const Value* otherwise = call.find(0);
  return otherwise == nullptr ? call.run.text({}) : *otherwise;
}

Value attribute(const Call& call) {
  return call.run.attribute(call.self, call.text(0).bytes);
}

Value to_json(const Call& call) {
  JsonStyle style;
  style.only_ascii = call.flag(0);
  style.sorts_keys = call.flag(3);
  if (call.given(1) != nullptr) {
    style.indent = std::clamp<int64_t>(call.integer(1, 0), 0, 64);
    style.item_separator = ",";
  }
  if (const Value* separators = call.given(2)) {
    const auto both = call.run.elements(*separators);
    if (both->items.size() != 2) call.run.fail("separators of tojson are two texts");
    style.item_separator = call.run.text_argument(both->items[0], "tojson").bytes;
    style.key_separator = call.run.text_argument(both->items[1], "tojson").bytes;
  }
  const int64_t size = extent_of(call.self).size;
  call.run.spend(size, size * (style.indent < 0 ? 4 : 64 * style.indent + 4));
  bool fits = true;
  std::string json = json_of(call.self, style, fits);
  if (!fits) call.run.fail(fmt::format("tojson of {}", call.self.type_name()));
  return call.run.text({std::move(json), extent_of(call.self).message});
}

Value length(const Call& call) {
  if (const Text* text = call.self.as_text()) {
    call.run.spend(extent_of(call.self).size);
    return Value(length_of(text->bytes));
  }
  if (const Dict* dict = call.self.as_dict()) return Value(std::ssize(dict->entries));
  const List* list = call.self.as_list();
  if (list != nullptr && list->kind != List::Kind::generator) return Value(std::ssize(list->items));
  if (call.self.is_undefined()) return Value(int64_t{0});
  call.run.fail(fmt::format("{} has no length", call.self.type_name()));
}

/// The whole of a text as a number, as Python reads it; nothing where it is none.
template <typename T, typename... Base>
std::optional<T> number_in(const Text& whole, Base... base) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string given = stripped(whole, true, true).bytes;
  std::string text;
  for (size_t i = given.starts_with('+') && !given.starts_with("+-") ? 1 : 0; i < given.size();
       ++i) {
    const bool separates = given[i] == '_' && i > 0 && i + 1 < given.size() &&
                           is_digit(given[i - 1]) && is_digit(given[i + 1]);
    if (!separates) text += given[i];
  }
  T number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, base...);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(number) : std::nullopt;
}

Value integer(const Call& call) {
  const Value* otherwise = call.find(0);
  if (call.run.defined(call.self).is_integer()) return Value(call.self.integer());
  std::optional<double> real;
  if (call.self.is_number()) real = call.self.real();
  if (const Text* text = call.self.as_text()) {
    if (const auto number = number_in<int64_t>(*text, 10)) return Value(*number);
    real = number_in<double>(*text);
  }
  if (real && std::abs(*real) < 9e18) return Value(static_cast<int64_t>(*real));
  return otherwise == nullptr ? Value(int64_t{0}) : *otherwise;
}

Value real(const Call& call) {
  const Value* otherwise = call.find(0);
  if (call.run.defined(call.self).is_number()) return Value(call.self.real());
  const Text* text = call.self.as_text();
  const std::optional<double> number = text == nullptr ? std::nullopt : number_in<double>(*text);
  if (number) return Value(*number);
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value absolute(const Call& call) {
  if (const double* number = call.self.get<double>()) return Value(std::abs(*number));
  const int64_t number = call.run.integer_argument(call.self, "abs");
  return number < 0 ? call.run.binary("-", Value(int64_t{0}), call.self) : Value(number);
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

Value rounded(const Call& call) {
  if (!call.run.defined(call.self).is_number()) call.run.fail("round takes a number");
  const int64_t digits = call.integer(0, 0);
  const std::string method = call.given(1) == nullptr ? "common" : call.text(1).bytes;
  if (call.self.is_integer() && method == "common") {
    return rounded_integer(call.self.integer(), digits);
  }
  constexpr int64_t kMaxDigits = 300;
  if (digits < -kMaxDigits || digits > kMaxDigits) {
    call.run.fail("round takes at most 300 digits");
  }
  const double number = call.self.real(), scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return Value(std::ceil(number * scale) / scale);
  if (method == "floor") return Value(std::floor(number * scale) / scale);
  if (digits < 0) return Value(std::nearbyint(number * scale) / scale);
  return Value(std::strtod(fmt::format("{:.{}f}", number, digits).c_str(), nullptr));
}

constexpr Callable kFilters[] = {
    {"string", [](const Call& call) { return call.run.text(call.run.written(call.self)); }},
    {"default", default_value, {"default_value", "boolean"}},
    {"d", default_value, {"default_value", "boolean"}},
    {"attr", attribute, {"name"}},
    {"tojson", to_json, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"length", length},
    {"count", length},
    {"int", integer, {"default"}},
    {"float", real, {"default"}},
    {"abs", absolute},
    {"round", rounded, {"precision", "method"}},
};

}  // namespace
}  // namespace values

constinit const Callables kValueFilters = values::kFilters;

}  // namespace fp8train::jinja
