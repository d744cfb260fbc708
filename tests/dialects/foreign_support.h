#pragma once
// Files of other programs in a test.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "config/load_support.h"

namespace fp8train::test {

inline Settings load_foreign(const std::string& text) {
  return load_text(text);
}

inline std::string error_of_foreign(const std::string& text) {
  return error_of(text);
}

inline bool says(const Settings& settings, const std::string& part) {
  const auto& lines = settings.notes.lines;
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "fp8train_foreign_files") {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace fp8train::test
