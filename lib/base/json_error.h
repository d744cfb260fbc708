#pragma once
// Explains in words why a JSON parser has refused a text.

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace fp8train {

struct JsonError {
  size_t line = 1, column = 1;  ///< counted from 1
  std::string what;             ///< "unexpected ','", "this { is not closed before the text ends"
};

/// Returns the location and the reason of a parser's refusal. `byte`: the last one that the parser
/// read, counted from 1 (nlohmann::json::parse_error::byte).
JsonError json_error(std::string_view text, size_t byte);

/// Returns "WHERE:LINE:COLUMN: not JSON: WHAT" of json_error().
std::string not_json(const std::string& where, std::string_view text, size_t byte);

/// Returns what an exception of the JSON library says, without the name that it begins with:
/// "[json.exception.type_error.302] ".
std::string plain_json_error(const std::exception& error);

/// Returns the last bracket or double quote that is not closed before the text ends, or nothing if
/// all are closed.
std::optional<JsonError> unclosed(std::string_view text);

}  // namespace fp8train
