// The tests of Jinja (tests.py): {{ value is NAME }}.

#include <fmt/format.h>

#include <algorithm>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/letters.h"

namespace fp8train::jinja {
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

constexpr std::pair<std::string_view, TestFunction> kTests[] = {
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

TestFunction find_test(std::string_view name) {
  const auto& all = tests::kTests;
  const auto* found = std::find_if(std::begin(all), std::end(all),
                                   [&](const auto& test) { return test.first == name; });
  return found == std::end(all) ? nullptr : found->second;
}

}  // namespace fp8train::jinja
