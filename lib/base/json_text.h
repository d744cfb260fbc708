#pragma once
// JSON as text; base/json_reader.h reads it.

#include <nlohmann/json.hpp>
#include <string>

namespace fp8train {

/// Returns the document on one line, or with `indent` blanks for each level. Bytes that are not
/// UTF-8, as names of files may have, become U+FFFD.
template <typename Json>
std::string json_text(const Json& document, int indent = -1) {
  return document.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fp8train
