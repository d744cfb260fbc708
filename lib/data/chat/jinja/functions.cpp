// Calls, and the functions that templates have.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "base/error.h"
#include "data/chat/jinja/interpreter.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace calls {
namespace {

constexpr int64_t kMaxRange = 100'000;  ///< as in Jinja's sandbox

/// kToday as strftime() writes it; empty for formats whose text would depend on the machine.
std::string fixed_date(const std::string& format) {
  std::tm date = {};
  date.tm_year = 2024 - 1900;
  date.tm_mon = 6;
  date.tm_mday = 26;
  date.tm_wday = 5;
  date.tm_yday = 207;
  constexpr std::string_view kLetters = "aAbBdHIjmMpSyY%";
  for (size_t at = format.find('%'); at != std::string::npos; at = format.find('%', at + 2)) {
    const char letter = at + 1 < format.size() ? format[at + 1] : ' ';
    if (kLetters.find(letter) == std::string_view::npos) return "";
  }
  std::array<char, 256> written = {};
  const size_t length = std::strftime(written.data(), written.size(), format.c_str(), &date);
  return {written.data(), length};
}

Value strftime_now(const Call& call) {
  std::string date = fixed_date(call.text(0).bytes);
  if (date.empty()) call.run.fail("strftime_now() of this format is not supported");
  return call.run.text(std::move(date));
}

Value raise_exception(const Call& call) {
  constexpr size_t kMaxShown = 500;
  const Value* message = call.find(0);
  const std::string text = message == nullptr ? "" : call.run.written(*message).bytes;
  throw DataError(fmt::format("the chat template refuses the dialogue: {}",
                              printable(text.substr(0, kMaxShown))));
}

Value range(const Call& call) {
  const size_t count = call.arguments.values.size();
  if (count == 0 || !call.arguments.named.empty()) {
    call.run.fail("range() takes one to three integers");
  }
  const auto at = [&](size_t i) { return call.run.integer_argument(call.at(i), "range()"); };
  const int64_t begin = count == 1 ? 0 : at(0), end = at(count == 1 ? 0 : 1);
  const int64_t step = count == 3 ? at(2) : 1;
  if (step == 0) call.run.fail("the step of range() is 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (std::ssize(items) == kMaxRange) {
      call.run.fail(fmt::format("range() of more than {} integers", kMaxRange));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return call.run.list(std::move(items), List::Kind::range);
}

Value dict(const Call& call) {
  const int64_t named = std::ssize(call.arguments.named);
  call.run.spend(named * named / 8);
  Dict entries;
  for (const Value& value : call.arguments.values) {
    const Dict* given = value.as_dict();
    if (given == nullptr) {
      call.run.fail(
          fmt::format("{}() takes a dictionary, not {}", call.callee.name, value.type_name()));
    }
    for (const auto& [key, entry] : given->entries) entries.set(key, entry);
  }
  for (const auto& [name, value] : call.arguments.named) entries.set(Value::text(name), value);
  return call.run.dict(std::move(entries));
}

Value make_namespace(const Call& call) {
  const Value entries = dict(call);
  const auto space = std::make_shared<Namespace>(Namespace{*entries.as_dict()});
  call.run.at_end([space] { space->attributes.entries.clear(); });
  return Value(space);
}

Value cycle(const Call& call) {
  const Loop& loop = **call.self.get<std::shared_ptr<Loop>>();
  const std::vector<Value>& values = call.arguments.values;
  if (values.empty()) call.run.fail("loop.cycle() takes values");
  return values[static_cast<size_t>(loop.index) % values.size()];
}

Value changed(const Call& call) {
  const std::shared_ptr<Loop> loop = *call.self.get<std::shared_ptr<Loop>>();
  const Value seen = call.run.list(call.arguments.values, List::Kind::tuple);
  call.run.spend(extent_of(seen).size);
  if (!loop->last_seen) call.run.at_end([loop] { loop->last_seen.reset(); });
  const bool is_other = !loop->last_seen || !equal(*loop->last_seen, seen);
  loop->last_seen = std::make_shared<Value>(seen);
  return Value(is_other);
}

constexpr Callable kFunctions[] = {
    {"range", range, {"start", "stop", "step"}},
    {"dict", dict, {Callable::kAny}},
    {"namespace", make_namespace, {Callable::kAny}},
    {"raise_exception", raise_exception, {"message"}},
    {"strftime_now", strftime_now, {"format"}},
};
constexpr Callable kLoopMethods[] = {
    {"cycle", cycle, {Callable::kAny}},
    {"changed", changed, {Callable::kAny}},
};

}  // namespace
}  // namespace calls

constinit const Callables kFunctions = calls::kFunctions;
constinit const Callables kLoopMethods = calls::kLoopMethods;

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  const auto found =
      std::ranges::find_if(named, [&](const auto& argument) { return argument.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

const Value* Call::find(size_t parameter) const {
  return arguments.find(parameter, callee.parameters[parameter]);
}

const Value* Call::given(size_t parameter) const {
  const Value* value = find(parameter);
  return value == nullptr || value->is_none() ? nullptr : value;
}

bool Call::flag(size_t parameter) const {
  const Value* value = find(parameter);
  return value != nullptr && value->is_true();
}

int64_t Call::integer(size_t parameter, int64_t otherwise) const {
  const Value* value = given(parameter);
  return value == nullptr ? otherwise : run.integer_argument(*value, callee.name);
}

const Value& Call::at(size_t parameter) const {
  const Value* value = find(parameter);
  if (value == nullptr) {
    run.fail(
        fmt::format("'{}' lacks its argument '{}'", callee.name, callee.parameters[parameter]));
  }
  return *value;
}

const Text& Call::text(size_t parameter) const {
  return run.text_argument(at(parameter), callee.name);
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  const auto* found = defined(callee).get<std::shared_ptr<const Function>>();
  if (found == nullptr) fail(fmt::format("{} is called", callee.type_name()));
  const std::shared_ptr<const Function> function = *found;
  if (function->callable == nullptr) return call_macro(*function, arguments);
  if (!function->self) return invoke(*function->callable, Value(), arguments);
  if (!function->self->get<std::shared_ptr<Loop>>()) spend(extent_of(*function->self).size);
  return invoke(*function->callable, *function->self, arguments);
}

}  // namespace fp8train::jinja
