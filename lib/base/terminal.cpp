#include "base/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace fp8train {

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
