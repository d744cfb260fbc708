#pragma once
// An option with a few values, by name.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"

namespace fp8train {

template <typename Value>
using Choices = std::vector<std::pair<std::string, Value>>;

/// Values that have names already.
template <typename Values>
auto choices_of(const Values& values) {
  Choices<typename Values::value_type> choices;
  for (const auto& value : values) {
    choices.emplace_back(name_of(value), value);
  }
  return choices;
}

/// The values of a table of names (base/names.h).
template <typename Value, size_t count>
Choices<Value> choices_of(const std::pair<Value, std::string_view> (&table)[count]) {
  Choices<Value> choices;
  for (const auto& [value, name] : table) {
    choices.emplace_back(name, value);
  }
  return choices;
}

/// "a, b or c".
template <typename Value>
std::string names_of(const Choices<Value>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    names.push_back(name);
  }
  return alternatives(names);
}

/// The value of the name that was given. Throws ConfigError, which names `option` and all names.
template <typename Value>
Value choose(const char* option, const std::string& given, const Choices<Value>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (name == given) {
      return value;
    }
    names.push_back(name);
  }
  const std::string near = nearest_name(given, names);
  throw ConfigError(fmt::format("{} {}: expected {}{}", option, given, fmt::join(names, ", "),
                                near.empty() ? "" : fmt::format("; did you mean {}?", near)));
}

}  // namespace fp8train
