#pragma once
// base/json_reader.h for checkpoints and model folders.

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace fp8train {

/// Returns object[key] as a T (an integer type). Json's own conversion turns a fraction, or a
/// number out of range, into another one without a word. Throws CheckpointError, which begins with
/// `where`, if it is not a whole number or does not fit, and Json's exception if the key is
/// missing.
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

namespace detail {

/// Parses a text. Throws CheckpointError beginning with `where`.
nlohmann::ordered_json parse_strict_json(std::string_view text, const std::string& where);

/// Parses a whole file of at most kMaxJsonFile bytes. Throws CheckpointError also when it cannot be
/// read.
nlohmann::ordered_json read_strict_json(const std::string& path);

/// Returns the result of `read`. A DataError that it throws becomes a CheckpointError of the same
/// text.
template <typename Read>
auto as_checkpoint_error(const Read& read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

/// Whether `name` is a plain file name: at most 200 letters, digits, '.', '_' and '-', not starting
/// with a dot. Anything else could lead out of a folder.
bool is_plain_name(std::string_view name);

/// Whether `name` is a plain name, or two with a '/' between them: a file of a subfolder.
bool is_plain_path(std::string_view name);

}  // namespace detail
}  // namespace fp8train
