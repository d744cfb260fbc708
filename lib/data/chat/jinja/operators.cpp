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

/// Nothing where the result has more than 64 bits. `b` is not 0 for // and %, nor below 0 for **.
std::optional<int64_t> of_integers(std::string_view op, int64_t a, int64_t b) {
  __int128 result = a;
  if (op == "+") {
    result += b;
  } else if (op == "-") {
    result -= b;
  } else if (op == "*") {
    result *= b;
  } else if (op == "**") {
    const bool repeats = a >= -1 && a <= 1 && b > 3;  // 2 gives what even numbers give, 3 odd ones
    const int64_t times = repeats ? 2 + b % 2 : b;
    result = 1;
    for (int64_t i = 0; i < times && result == static_cast<int64_t>(result); ++i) result *= a;
  } else {
    const __int128 rest = result % b;
    const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);  // as Python does
    result = op == "%" ? rest + (rounds_down ? b : 0) : result / b - (rounds_down ? 1 : 0);
  }
  if (result != static_cast<int64_t>(result)) return std::nullopt;
  return static_cast<int64_t>(result);
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
    interpreter.spend(extent_of(whole).size);
    return find_in(text->bytes, wanted.bytes, 0) != std::string::npos;
  }
  if (const Dict* dict = whole.as_dict()) {
    interpreter.spend(std::ssize(dict->entries) / 8 + extent_of(part).size);
    return dict->find(part) != nullptr;
  }
  const auto items = interpreter.elements(whole);
  interpreter.spend(items->extent.size);
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
  spend(std::min(extent_of(a).size, extent_of(b).size));
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

template <bool (*holds)(const Value&)>
Value is(const Call& call) {
  return Value(holds(call.self));
}

/// The tests that are operators.
template <char first, char second = 0>
Value compares(const Call& call) {
  constexpr char kOperator[] = {first, second, 0};
  return Value(call.run.compare(kOperator, call.self, call.at(0)));
}

template <bool wanted>
Value is_odd(const Call& call) {
  const int64_t number = call.run.integer_argument(call.self, "a test of numbers");
  return Value((number % 2 != 0) == wanted);
}

Value divides(const Call& call) {
  const int64_t divisor = call.run.integer_argument(call.at(0), "divisibleby");
  if (divisor == 0) call.run.fail("division by zero");
  const int64_t number = call.run.integer_argument(call.self, "a test of numbers");
  return Value(divisor == -1 || number % divisor == 0);
}

/// As Python's islower() and isupper(): a text that has letters with another case.
template <std::string (*change)(std::string_view), std::string (*change_back)(std::string_view)>
Value is_in_case(const Call& call) {
  const std::string text = text_of(call.self).bytes;
  return Value(text != change_back(text) && text == change(text));
}

bool is_ordered(const Value& value) {
  const List* list = value.as_list();
  if (list != nullptr) return list->is_ordered();
  return value.as_text() != nullptr || value.as_dict() != nullptr || value.is_undefined();
}

constexpr Callable kTests[] = {
    {"defined", is<[](const Value& v) { return !v.is_undefined(); }>},
    {"undefined", is<[](const Value& v) { return v.is_undefined(); }>},
    {"none", is<[](const Value& v) { return v.is_none(); }>},
    {"boolean", is<[](const Value& v) { return v.get<bool>() != nullptr; }>},
    {"true", is<[](const Value& v) { return v.get<bool>() != nullptr && v.is_true(); }>},
    {"false", is<[](const Value& v) { return v.get<bool>() != nullptr && !v.is_true(); }>},
    {"integer", is<[](const Value& v) { return v.get<int64_t>() != nullptr; }>},
    {"float", is<[](const Value& v) { return v.get<double>() != nullptr; }>},
    {"number", is<[](const Value& v) { return v.is_number(); }>},
    {"string", is<[](const Value& v) { return v.as_text() != nullptr; }>},
    {"mapping", is<[](const Value& v) { return v.as_dict() != nullptr; }>},
    {"sequence", is<is_ordered>},
    {"iterable", is<[](const Value& v) { return is_ordered(v) || v.as_list() != nullptr; }>},
    {"callable", is<[](const Value& v) {
       return v.is_undefined() || v.get<std::shared_ptr<const Function>>() != nullptr;
     }>},
    {"odd", is_odd<true>},
    {"even", is_odd<false>},
    {"divisibleby", divides, {"num"}},
    {"lower", is_in_case<lower, upper>},
    {"upper", is_in_case<upper, lower>},
    {"in", compares<'i', 'n'>, {"seq"}},
    {"eq", compares<'=', '='>, {"other"}},
    {"equalto", compares<'=', '='>, {"other"}},
    {"==", compares<'=', '='>, {"other"}},
    {"ne", compares<'!', '='>, {"other"}},
    {"!=", compares<'!', '='>, {"other"}},
    {"lt", compares<'<'>, {"other"}},
    {"lessthan", compares<'<'>, {"other"}},
    {"<", compares<'<'>, {"other"}},
    {"le", compares<'<', '='>, {"other"}},
    {"<=", compares<'<', '='>, {"other"}},
    {"gt", compares<'>'>, {"other"}},
    {"greaterthan", compares<'>'>, {"other"}},
    {">", compares<'>'>, {"other"}},
    {"ge", compares<'>', '='>, {"other"}},
    {">=", compares<'>', '='>, {"other"}},
};

}  // namespace
}  // namespace tests

constinit const Callables kTests = tests::kTests;

}  // namespace fp8train::jinja
