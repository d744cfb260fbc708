#pragma once
// Properties of a stream's terminal, what may be written to it, and the programs that a shell would
// find.

#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

namespace fp8train {

enum class Color { red, yellow };

/// Whether text for `out` may have colours: it is a terminal that has them (TERM), and NO_COLOR is
/// unset or empty (no-color.org).
bool has_colors(std::FILE* out);

/// `text` in the colour, where `out` may have colours.
std::string colored(std::FILE* out, Color color, std::string_view text);

/// Whether the text has a control character of ASCII, line feeds included and tabs not.
bool has_control(std::string_view text);

/// Returns the text with "\\x1b" for each control character, but for line feeds and tabs: those of
/// ASCII, and those from U+0080 to U+009F in UTF-8. Names from files could otherwise move a
/// terminal's cursor or change its settings (ECMA-48).
std::string without_controls(std::string_view text);

inline constexpr size_t kNoColumns = std::numeric_limits<size_t>::max();

/// Returns the file that a shell would start for `name`, by PATH, or "" if there is none.
std::string program_on_path(const std::string& name);

/// Width of the terminal in characters; kNoColumns where there is none.
size_t terminal_columns(std::FILE* out);

}  // namespace fp8train
