#include "base/screen.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace fp8train {
namespace {

/// Characters of UTF-8; those of colours (ECMA-48's SGR) have no width.
size_t width_of(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = std::min(text.find('m', i), text.size());
    } else {
      width += (static_cast<unsigned char>(text[i]) & 0xc0U) != 0x80 ? 1 : 0;
    }
  }
  return width;
}

/// Where the text of a line begins: after its indentation and its labels, which two blanks or more
/// end, in the first half.
size_t text_begin(const std::string& line, size_t columns) {
  size_t begin = line.find_first_not_of(' ');
  for (;;) {
    const size_t gap = std::min(line.find("  ", begin), line.size());
    const size_t next = line.find_first_not_of(' ', gap);
    if (next == std::string::npos || width_of({line.data(), next}) > columns / 2) {
      return begin;
    }
    begin = next;
  }
}

/// The end of the word that begins at `word`. A command in backquotes that is no longer than `most`
/// is one word.
size_t word_end(const std::string& line, size_t word, size_t most) {
  const size_t end = std::min(line.find(' ', word), line.size());
  const auto quotes = std::count(line.begin() + static_cast<std::ptrdiff_t>(word),
                                 line.begin() + static_cast<std::ptrdiff_t>(end), '`');
  const size_t close = quotes % 2 == 1 ? line.find('`', end) : std::string::npos;
  const size_t whole =
      close == std::string::npos ? end : std::min(line.find(' ', close), line.size());
  return whole - word <= most ? whole : end;
}

/// `line` is wider than `columns`. A longer command is continued as a shell reads it.
std::string wrapped_line(const std::string& line, size_t columns) {
  const size_t begin = text_begin(line, columns);
  std::string next(width_of({line.data(), begin}), ' ');  // begins the lines after a break
  const size_t first_end = std::min(line.find(' ', begin), line.size());
  if (line[begin] == '#') {
    next += "# ";
  } else if (const std::string_view first(line.data() + begin, first_end - begin);
             begin == line.find_first_not_of(' ') &&
             (first.ends_with(':') || first.starts_with('\x1b'))) {
    next += "  ";  // "error: ..."
  }
  std::string result;
  std::string current = line.substr(0, begin);
  bool in_command = false;
  for (size_t at = begin; at < line.size();) {
    const size_t word = std::min(line.find_first_not_of(' ', at), line.size());
    const size_t end = word_end(line, word, in_command ? 0 : columns - next.size());
    const std::string_view piece{line.data() + at, end - at};
    const bool opens = std::ranges::count(piece, '`') % 2 == 1;
    const size_t reserved = in_command != opens ? 2 : 0;  // for " \\"
    if (at == begin || width_of(current) + width_of(piece) + reserved <= columns) {
      current += piece;
    } else {
      result += current + (in_command ? " \\\n" : "\n");
      current = next + line.substr(word, end - word);
    }
    in_command = in_command != opens;
    at = end;
  }
  return result + current + "\n";
}

bool is_number(const std::string& text) {
  return text.find_first_not_of("0123456789.+-e%") == std::string::npos;
}

}  // namespace

std::string wrapped(const std::string& text, size_t columns) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    const bool fits = width_of(line) <= columns || line.find_first_not_of(' ') == std::string::npos;
    result += fits ? line + "\n" : wrapped_line(line, columns);
  }
  if (!text.empty() && text.back() != '\n') {
    result.pop_back();
  }
  return result;
}

std::string fitted(std::FILE* out, const std::string& text) {
  return wrapped(text, terminal_columns(out));
}

size_t columns_of(std::FILE* out, size_t columns) {
  return std::min(columns, terminal_columns(out));
}

std::string table_text(std::vector<TableColumn> table, size_t columns) {
  const auto width = [](const TableColumn& column) {
    size_t widest = width_of(column.title);
    for (const std::string& entry : column.texts) {
      widest = std::max(widest, width_of(entry));
    }
    return widest;
  };
  const auto total = [&] {
    size_t sum = 0;
    for (const TableColumn& column : table) {
      sum += width(column) + (&column == &table.back() ? 0 : 2);
    }
    return sum;
  };
  std::string lost;
  while (total() > columns) {
    const auto least =
        std::max_element(table.begin(), table.end(),
                         [](const auto& a, const auto& b) { return a.lost_first < b.lost_first; });
    if (least->lost_first == 0) {
      break;
    }
    lost += (lost.empty() ? "" : ", ") + least->title;
    table.erase(least);
  }
  std::string text;
  const auto add = [&](const TableColumn& column, const std::string& entry, bool right) {
    const std::string blanks(width(column) - width_of(entry), ' ');
    const bool last = &column == &table.back();
    text += right ? blanks + entry : last ? entry : entry + blanks;
    text += last ? "" : "  ";
    if (last) {
      text.erase(text.find_last_not_of(' ') + 1);
      text += "\n";
    }
  };
  std::vector<bool> right;
  for (const TableColumn& column : table) {
    right.push_back(std::ranges::all_of(column.texts, is_number));
    add(column, column.title, right.back());
  }
  for (size_t row = 0; row < table.front().texts.size(); ++row) {
    for (size_t i = 0; i < table.size(); ++i) {
      add(table[i], table[i].texts[row], right[i]);
    }
  }
  return text + (lost.empty() ? "" : fmt::format("Not in {} columns: {}.\n", columns, lost));
}

bool has_colors(std::FILE* out) {
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return (refused == nullptr || *refused == '\0') && terminal != nullptr && *terminal != '\0' &&
         std::string_view(terminal) != "dumb" && isatty(fileno(out)) == 1;
}

std::string colored(std::FILE* out, Color color, std::string_view text) {
  const char* const code = color == Color::red ? "\x1b[1;31m" : "\x1b[33m";
  return has_colors(out) ? code + std::string(text) + "\x1b[0m" : std::string(text);
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  });
}

std::string without_controls(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_line = byte == '\n' || byte == '\t';
    if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {
      result += fmt::format("\\x{:02x}", next);
      ++i;
    } else if ((byte < 0x20 && !is_line) || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string program_on_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path file = std::filesystem::path(folder.empty() ? "." : folder) / name;
    std::error_code failure;
    if (std::filesystem::is_regular_file(file, failure) && access(file.c_str(), X_OK) == 0) {
      return file.string();
    }
  }
  return "";
}

size_t terminal_columns(std::FILE* out) {
  winsize size = {};
  const bool known = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kNoColumns;
}

}  // namespace fp8train
