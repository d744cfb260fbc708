#include "output_path.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"

namespace fp8train {

namespace fs = std::filesystem;

fs::path nearest_existing(const fs::path& path) {
  std::error_code unseen;  // a folder above may not be read
  fs::path existing = fs::absolute(path).lexically_normal();
  existing = existing.has_filename() ? existing : existing.parent_path();  // of "folder/"
  while (!fs::exists(fs::symlink_status(existing, unseen)) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  return existing;
}

std::string why_unwritable(const fs::path& folder) {
  const fs::path existing = nearest_existing(folder);
  std::string made = (existing / ".fp8train-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) {
    return fmt::format("{} cannot be written to: {}", existing.string(), std::strerror(errno));
  }
  rmdir(made.c_str());
  return "";
}

std::string why_no_file(const fs::path& file) {
  const std::string problem = why_not_replaced(file);
  return !problem.empty() || is_stream(file) ? problem
                                             : why_unwritable(fs::absolute(file).parent_path());
}

void check_output_file(const fs::path& file, bool overwrite, const char* option) {
  if (const std::string problem = why_no_file(file); !problem.empty()) {
    throw DeviceError(problem);
  }
  if (!overwrite && fs::exists(file) && !is_stream(file)) {
    throw ConfigError(
        fmt::format("{} already exists; replace it with --overwrite, or name another file with {}",
                    file.string(), option));
  }
}

void write_output_file(const fs::path& file, const std::string& text) {
  create_folder(fs::absolute(file).parent_path());
  write_file_atomically(file, text);
}

}  // namespace fp8train
