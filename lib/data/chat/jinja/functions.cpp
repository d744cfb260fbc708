// Calls, and the functions that templates have.

#include <fmt/format.h>

#include <array>
#include <ctime>

#include "base/error.h"
#include "data/chat/jinja/interpreter.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  ///< as in Jinja's sandbox

/// kToday as strftime() writes it; empty for formats whose text would depend on the machine.
std::string fixed_date(const Text& format) {
  std::tm date = {};
  date.tm_year = 2024 - 1900;
  date.tm_mon = 6;
  date.tm_mday = 26;
  date.tm_wday = 5;
  date.tm_yday = 207;
  constexpr std::string_view kLetters = "aAbBdHIjmMpSyY%";
  for (size_t at = format.bytes.find('%'); at != std::string::npos;
       at = format.bytes.find('%', at + 2)) {
    const char letter = at + 1 < format.bytes.size() ? format.bytes[at + 1] : ' ';
    if (kLetters.find(letter) == std::string_view::npos) return "";
  }
  std::array<char, 256> written = {};
  const size_t length = std::strftime(written.data(), written.size(), format.bytes.c_str(), &date);
  return {written.data(), length};
}

}  // namespace

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  const auto* function = defined(callee).get<std::shared_ptr<const Function>>();
  if (function == nullptr) fail(fmt::format("{} is called", callee.type_name()));
  const std::shared_ptr<const Function> held = *function;
  switch (held->kind) {
    case Function::Kind::builtin:
      return call_builtin(*held, arguments);
    case Function::Kind::method:
      return call_method(*this, *held->self, held->name, arguments);
    case Function::Kind::loop_method:
      return call_loop(*held, arguments);
    case Function::Kind::macro:
      break;
  }
  return call_macro(*held, arguments);
}

Value Interpreter::range(const Arguments& arguments) {
  const auto at = [&](size_t position) {
    return integer_argument(arguments.values[position], "range()");
  };
  const size_t count = arguments.values.size();
  if (count < 1 || count > 3) fail("range() takes one to three integers");
  const int64_t begin = count == 1 ? 0 : at(0), end = at(count == 1 ? 0 : 1);
  const int64_t step = count == 3 ? at(2) : 1;
  if (step == 0) fail("the step of range() is 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (std::ssize(items) == kMaxRange) {
      fail(fmt::format("range() of more than {} integers", kMaxRange));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list(std::move(items), List::Kind::range);
}

Value Interpreter::call_builtin(const Function& function, const Arguments& arguments) {
  if (function.name == "raise_exception") {
    const Value* message = arguments.find(0, "message");
    constexpr size_t kMaxShown = 500;
    const std::string text = message == nullptr ? "" : written(*message).bytes;
    throw DataError(fmt::format("the chat template refuses the dialogue: {}",
                                printable(text.substr(0, kMaxShown))));
  }
  if (function.name == "strftime_now") {
    const Value* format = arguments.find(0, "format");
    std::string date =
        fixed_date(text_argument(format == nullptr ? Value() : *format, "strftime_now()"));
    if (date.empty()) fail("strftime_now() of this format is not supported");
    return text(std::move(date));
  }
  if (function.name == "range") return range(arguments);
  const int64_t named = std::ssize(arguments.named);
  spend(named * named / 8, 0);
  Dict entries;
  for (const Value& value : arguments.values) {
    const Dict* given = value.as_dict();
    if (given == nullptr) {
      fail(fmt::format("{}() takes a dictionary, not {}", function.name, value.type_name()));
    }
    for (const auto& [key, entry] : given->entries) entries.set(key, entry);
  }
  for (const auto& [name, value] : arguments.named) entries.set(Value::text(name), value);
  if (function.name == "dict") return dict(std::move(entries));
  const Value checked = dict(std::move(entries));
  const auto space = std::make_shared<Namespace>(Namespace{*checked.as_dict()});
  spend(0, kBytesOfLasting);
  namespaces_.push_back(space);
  return Value(space);
}

Value Interpreter::call_loop(const Function& function, const Arguments& arguments) {
  const std::shared_ptr<Loop> loop = *function.self->get<std::shared_ptr<Loop>>();
  if (function.name == "cycle") {
    if (arguments.values.empty()) fail("loop.cycle() takes values");
    return arguments.values[static_cast<size_t>(loop->index) % arguments.values.size()];
  }
  const Value seen = list(arguments.values, List::Kind::tuple);
  spend(extent_of(seen).size, 0);
  if (!loop->last_seen) {
    spend(0, kBytesOfLasting);
    changed_loops_.push_back(loop);
  }
  const bool changed = !loop->last_seen || !equal(*loop->last_seen, seen);
  loop->last_seen = std::make_shared<Value>(seen);
  return Value(changed);
}

}  // namespace fp8train::jinja
