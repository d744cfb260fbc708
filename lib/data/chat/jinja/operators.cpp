// Operators between values, as Python has them, and the tests of Jinja (tests.py):
// {{ value is NAME }}.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace fp8train::jinja {
namespace {

/// Rounds down, as Python's // does.
int64_t floor_divided(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

/// a to the power of b >= 0; nothing where it has more than 64 bits.
std::optional<int64_t> power(int64_t a, int64_t b) {
  int64_t result = 1;
  if (a == 0 || a == 1) return b == 0 ? 1 : a;
  if (a == -1) return b % 2 == 0 ? 1 : -1;
  for (; b > 0; --b) {
    if (__builtin_mul_overflow(result, a, &result)) return std::nullopt;
  }
  return result;
}

/// Nothing where the result has more than 64 bits, or is no integer.
std::optional<int64_t> of_integers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+")
    return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (op == "-")
    return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (op == "*")
    return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (op == "**") return power(a, b);
  if (a == INT64_MIN && b == -1) return op == "%" ? std::optional<int64_t>(0) : std::nullopt;
  if (op == "//") return floor_divided(a, b);
  return a - floor_divided(a, b) * b;
}

double of_reals(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  if (op == "**") return std::pow(a, b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// The text or list of a product with an integer; null for others.
const Value* repeated_of(const Value& a, const Value& b) {
  const auto repeats = [](const Value& value) {
    return value.as_text() != nullptr || value.as_list() != nullptr;
  };
  if (repeats(a) && b.is_integer()) return &a;
  return repeats(b) && a.is_integer() ? &b : nullptr;
}

Value repeat(Interpreter& interpreter, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const Text* text = value.as_text();
  const auto size =
      static_cast<int64_t>(text != nullptr ? text->bytes.size() : value.as_list()->items.size());
  if (size > 0 && times > Budget::kMaxBytes / size) {
    interpreter.spend(0, Budget::kMaxBytes + 1);
  }
  interpreter.spend(0, size * times);
  if (text != nullptr) {
    Text out;
    for (int64_t i = 0; i < times && size > 0; ++i) out.append(*text);
    return interpreter.text(std::move(out));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < times && size > 0; ++i) {
    items.insert(items.end(), value.as_list()->items.begin(), value.as_list()->items.end());
  }
  return interpreter.list(std::move(items), value.as_list()->kind);
}

bool holds(Interpreter& interpreter, const Value& whole, const Value& part) {
  if (const Text* text = whole.as_text()) {
    const Text& wanted = interpreter.text_argument(part, "'in' a text");
    interpreter.spend(extent_of(whole).size, 0);
    return find_in(text->bytes, wanted.bytes, 0) != std::string::npos;
  }
  if (const Dict* dict = whole.as_dict()) {
    interpreter.spend(std::ssize(dict->entries) / 8 + extent_of(part).size, 0);
    return dict->find(part) != nullptr;
  }
  const auto items = interpreter.elements(whole);
  interpreter.spend(items->extent.size, 0);
  return std::any_of(items->items.begin(), items->items.end(),
                     [&](const Value& item) { return equal(item, part); });
}

}  // namespace

Value Interpreter::binary(std::string_view op, const Value& a, const Value& b) {
  defined(a), defined(b);
  if (a.is_number() && b.is_number()) {
    const bool divides = op == "/" || op == "//" || op == "%";
    const bool inverts = op == "**" && a.real() == 0 && b.real() < 0;
    if ((divides && b.real() == 0) || inverts) fail("division by zero");
    const bool in_integers =
        a.is_integer() && b.is_integer() && op != "/" && !(op == "**" && b.integer() < 0);
    if (!in_integers) return Value(of_reals(op, a.real(), b.real()));
    const std::optional<int64_t> result = of_integers(op, a.integer(), b.integer());
    if (!result) fail(fmt::format("{} {} {} has more than 64 bits", a.integer(), op, b.integer()));
    return Value(*result);
  }
  if (op == "+" && a.as_text() != nullptr && b.as_text() != nullptr) {
    const bool is_markup = a.as_text()->is_markup || b.as_text()->is_markup;
    Text sum = is_markup ? a.as_text()->escaped() : *a.as_text();
    sum.append(is_markup ? b.as_text()->escaped() : *b.as_text());
    return text(std::move(sum));
  }
  const List *left = a.as_list(), *right = b.as_list();
  if (op == "+" && left != nullptr && right != nullptr && left->kind == right->kind &&
      left->has_sum()) {
    std::vector<Value> items = left->items;
    items.insert(items.end(), right->items.begin(), right->items.end());
    return list(std::move(items), left->kind);
  }
  if (const Value* repeated = op == "*" ? repeated_of(a, b) : nullptr) {
    return repeat(*this, *repeated, (repeated == &a ? b : a).integer());
  }
  fail(fmt::format("{} between {} and {}", op, a.type_name(), b.type_name()));
}

bool Interpreter::compare(std::string_view op, const Value& a, const Value& b) {
  spend(std::min(extent_of(a).size, extent_of(b).size), 0);
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return holds(*this, b, a);
  if (op == "not in") return !holds(*this, b, a);
  defined(a), defined(b);
  bool comparable = true;
  const bool is_less = op == "<" || op == ">=" ? less(a, b, comparable) : less(b, a, comparable);
  if (!comparable) fail(fmt::format("{} between {} and {}", op, a.type_name(), b.type_name()));
  return op == "<" || op == ">" ? is_less : !is_less;
}

namespace tests {
namespace {

const Value& other(Interpreter& interpreter, const Arguments& arguments) {
  const Value* value = arguments.find(0, "other");
  if (value == nullptr) interpreter.fail("a test lacks its argument");
  return *value;
}

template <char first, char second = 0>
bool compares(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  constexpr char kOperator[] = {first, second, 0};
  return interpreter.compare(kOperator, input, other(interpreter, arguments));
}

bool in(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return interpreter.compare("in", input, other(interpreter, arguments));
}

int64_t rest(Interpreter& interpreter, const Value& input, int64_t divisor) {
  if (divisor == 0) interpreter.fail("division by zero");
  return divisor == -1 ? 0 : interpreter.integer_argument(input, "a test of numbers") % divisor;
}

bool divisible(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return rest(interpreter, input,
              interpreter.integer_argument(other(interpreter, arguments), "divisibleby")) == 0;
}
bool odd(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  return rest(interpreter, input, 2) != 0;
}
bool even(Interpreter& interpreter, const Value& input, const Arguments& /*arguments*/) {
  return rest(interpreter, input, 2) == 0;
}

bool is_lower(Interpreter& /*interpreter*/, const Value& input, const Arguments& /*arguments*/) {
  const std::string text = text_of(input).bytes;
  return text != upper(text) && text == lower(text);
}
bool is_upper(Interpreter& /*interpreter*/, const Value& input, const Arguments& /*arguments*/) {
  const std::string text = text_of(input).bytes;
  return text != lower(text) && text == upper(text);
}

template <bool (*holds)(const Value&)>
bool of_value(Interpreter& /*interpreter*/, const Value& input, const Arguments& /*arguments*/) {
  return holds(input);
}

bool is_ordered(const Value& value) {
  const List* list = value.as_list();
  if (list != nullptr) return list->is_ordered();
  return value.as_text() != nullptr || value.as_dict() != nullptr || value.is_undefined();
}

constexpr Entry<bool> kTests[] = {
    {"defined", of_value<[](const Value& v) { return !v.is_undefined(); }>},
    {"undefined", of_value<[](const Value& v) { return v.is_undefined(); }>},
    {"none", of_value<[](const Value& v) { return v.is_none(); }>},
    {"boolean", of_value<[](const Value& v) { return v.get<bool>() != nullptr; }>},
    {"true", of_value<[](const Value& v) { return v.get<bool>() != nullptr && v.is_true(); }>},
    {"false", of_value<[](const Value& v) { return v.get<bool>() != nullptr && !v.is_true(); }>},
    {"integer", of_value<[](const Value& v) { return v.get<int64_t>() != nullptr; }>},
    {"float", of_value<[](const Value& v) { return v.get<double>() != nullptr; }>},
    {"number", of_value<[](const Value& v) { return v.is_number(); }>},
    {"string", of_value<[](const Value& v) { return v.as_text() != nullptr; }>},
    {"mapping", of_value<[](const Value& v) { return v.as_dict() != nullptr; }>},
    {"sequence", of_value<is_ordered>},
    {"iterable", of_value<[](const Value& v) { return is_ordered(v) || v.as_list() != nullptr; }>},
    {"callable", of_value<[](const Value& v) {
       return v.is_undefined() || v.get<std::shared_ptr<const Function>>() != nullptr;
     }>},
    {"odd", odd},
    {"even", even},
    {"divisibleby", divisible},
    {"lower", is_lower},
    {"upper", is_upper},
    {"in", in},
    {"eq", compares<'=', '='>},
    {"equalto", compares<'=', '='>},
    {"==", compares<'=', '='>},
    {"ne", compares<'!', '='>},
    {"!=", compares<'!', '='>},
    {"lt", compares<'<'>},
    {"lessthan", compares<'<'>},
    {"<", compares<'<'>},
    {"le", compares<'<', '='>},
    {"<=", compares<'<', '='>},
    {"gt", compares<'>'>},
    {"greaterthan", compares<'>'>},
    {">", compares<'>'>},
    {"ge", compares<'>', '='>},
    {">=", compares<'>', '='>},
};

}  // namespace
}  // namespace tests

const Entry<bool>* find_test(std::string_view name) {
  return entry_in(tests::kTests, name);
}

}  // namespace fp8train::jinja
