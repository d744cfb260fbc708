#pragma once
// Whole numbers of JSON files that others may have written. nlohmann::json silently converts a
// fraction or a number out of range to the requested type; for 1e300 that is undefined behaviour.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace fp8train {

/// Returns object[key] as a T (an integer type). Throws CheckpointError, beginning with `where`,
/// where it is not a whole number or does not fit; Json's own exception where the key is missing.
template <typename T, typename Json>
T whole_number(const Json& object, const char* key, const std::string& where) {
  const Json& value = object.at(key);
  bool fits = false;
  if (value.is_number_unsigned()) {
    fits = std::in_range<T>(value.template get<uint64_t>());
  } else if (value.is_number_integer()) {
    fits = std::in_range<T>(value.template get<int64_t>());
  }
  if (!fits) {
    throw CheckpointError(fmt::format("{}: {} is {}, which is not a whole number that fits", where,
                                      key, value.dump()));
  }
  return value.template get<T>();
}

/// Does the same, but returns `otherwise` if the key is missing.
template <typename T, typename Json>
T whole_number_or(const Json& object, const char* key, const std::string& where, T otherwise) {
  return object.contains(key) ? whole_number<T>(object, key, where) : otherwise;
}

}  // namespace fp8train
