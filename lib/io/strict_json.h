#pragma once
// JSON from files that others wrote: duplicate keys, trailing bytes and deep nesting are errors.
// For source files of this module only.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace fp8train::detail {

constexpr size_t kMaxJsonFile = 64U << 20;

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

}  // namespace fp8train::detail
