#pragma once
// Text for people in the width of what shows it: long lines break at words, and tables lose columns
// where they would break lines. Output into a pipe or a file stays as it is. Also the properties of
// a terminal, and what may be written to it.

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace fp8train {

inline constexpr size_t kColumns = 100;

/// Returns the text in lines of at most `columns` characters, broken at blanks; a longer word stays
/// whole, and so does a command in backquotes that fits into a line. A line after a break begins
/// below the text of the line before it: after its label ("plan    text"), its indentation and, in
/// a comment, "# ".
std::string wrapped(const std::string& text, size_t columns = kColumns);

/// Returns wrapped() in the width of the terminal that `out` is; the text itself where it is none.
std::string fitted(std::FILE* out, const std::string& text);

/// Returns the columns of lines for `out`: at most `columns`, and those of a terminal.
size_t columns_of(std::FILE* out, size_t columns = kColumns);

/// Prints fitted().
template <class... Values>
void print_fitted(std::FILE* out, fmt::format_string<Values...> text, Values&&... values) {
  fmt::print(out, "{}", fitted(out, fmt::format(text, std::forward<Values>(values)...)));
}
template <class... Values>
void print_fitted(fmt::format_string<Values...> text, Values&&... values) {
  print_fitted(stdout, text, std::forward<Values>(values)...);
}

struct TableColumn {
  std::string title;
  /// A table that is too wide loses the columns with the highest numbers first; 0: never lost.
  int lost_first = 0;
  std::vector<std::string> texts = {};
};

/// Adds a text to each column.
inline void add_row(std::vector<TableColumn>& table, std::initializer_list<std::string> texts) {
  check(texts.size() == table.size(), "a row has a text for each column");
  const auto* text = texts.begin();
  for (TableColumn& column : table) column.texts.push_back(*text++);
}

/// Returns lines with aligned columns, numbers at their right, and in lines of at most `columns`
/// the names of the columns that do not fit.
std::string table_text(std::vector<TableColumn> table, size_t columns);

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
