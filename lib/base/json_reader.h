#pragma once
// Reads JSON files that somebody else wrote: bytes after the value, deep nesting and, where a
// file's format has one meaning for a key, duplicate keys are errors. Lines of JSON have a reader
// of their own (data/readers/json_lines.h).

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fp8train {

constexpr size_t kMaxJsonFile = size_t{64} << 20;

enum class JsonKeys { unique, last_wins };

/// Returns the value of a text. Throws DataError "WHERE:LINE:COLUMN: not JSON: WHY" or "WHERE:
/// WHY". `Json`: nlohmann's json or ordered_json.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& where, JsonKeys keys = JsonKeys::unique);

/// Returns the value of a whole file of at most `max_bytes`. Throws DataError also where it cannot
/// be read.
template <class Json = nlohmann::json>
Json read_json_file(const std::filesystem::path& path, size_t max_bytes = kMaxJsonFile,
                    JsonKeys keys = JsonKeys::unique);

/// Returns the type of a value for messages: "an array".
std::string json_type_of(const nlohmann::json& value);

/// Returns the value of a text that is an object, else an empty object.
nlohmann::json json_object_or_empty(std::string_view text);

}  // namespace fp8train
