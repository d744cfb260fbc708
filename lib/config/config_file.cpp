#include "config/config_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace fp8train {
namespace {

/// JSON as YAML reads it: blanks for the tabs between its values. Other text stays as it is.
std::string json_as_yaml(std::string text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{') {
    return text;
  }
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && text[i] == '\t') {
      text[i] = ' ';
    }
  }
  return text;
}

}  // namespace

std::string read_config_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw ConfigError(fmt::format("{}: is a folder, not a configuration file", path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw ConfigError(
        fmt::format("{}: cannot open the configuration file: {}", path, std::strerror(errno)));
  }
  std::string text(kMaxYamlBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) {
    throw ConfigError(fmt::format("{}: cannot read the configuration file", path));
  }
  return text;
}

YamlNode parse_config(const std::string& text, size_t source, Problems& problems) {
  return parse_yaml(json_as_yaml(text), "", source, problems);
}

std::string named_file(const std::string& name, const std::string& from) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::path(name).is_absolute() || fs::exists(name, error)) {
    return name;
  }
  return (fs::path(from).parent_path() / name).lexically_normal().string();
}

}  // namespace fp8train
