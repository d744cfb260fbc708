#pragma once
// Tells text from JSON and from tables, which would be learned as the text that they are.

#include <cstdint>
#include <string_view>

namespace fp8train {

/// The kind of a text that is read as JSON: one or more objects, or an array, with something in it.
enum class JsonKind : uint8_t { none, objects, array };

/// Returns the kind of a text that begins so. `is_whole`: the text ends there; else what is open
/// may be closed later.
JsonKind json_kind(std::string_view text, bool is_whole);

/// Whether a text that begins so is a table: three rows or more, all of them with the same number
/// of columns, at least two, which commas, semicolons or tabs separate, and the first one with
/// different names without blanks. Columns may be quoted (RFC 4180).
bool is_table(std::string_view text, bool is_whole);

}  // namespace fp8train
