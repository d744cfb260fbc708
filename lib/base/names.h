#pragma once
// A closed choice is an enumeration and one table with the name of each of its values. These
// functions search such a table.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace fp8train {

/// The name of `value`, which the table has.
template <class Enum, size_t count>
constexpr std::string_view name_in(const std::pair<Enum, std::string_view> (&table)[count],
                                   std::type_identity_t<Enum> value) {
  return std::ranges::find(table, value, &std::pair<Enum, std::string_view>::first)->second;
}

/// The value with this name, or nothing.
template <class Enum, size_t count>
constexpr std::optional<Enum> value_in(const std::pair<Enum, std::string_view> (&table)[count],
                                       std::string_view name) {
  const auto* const found =
      std::ranges::find(table, name, &std::pair<Enum, std::string_view>::second);
  return found == std::end(table) ? std::nullopt : std::optional(found->first);
}

}  // namespace fp8train
