#pragma once
// A file, or a folder, in memory for one fuzz target's process.

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

/// Removed at the end of the process.
inline const std::string& scratch_path() {
  static const std::string path = "/dev/shm/fp8train-fuzz-" + std::to_string(::getpid());
  static const int registered = std::atexit([] {
    std::error_code ignored;
    for (const char* part : {"", "-checkpoint"}) {
      std::filesystem::remove_all(scratch_path() + part, ignored);
    }
  });
  static_cast<void>(registered);
  return path;
}

inline void write_scratch(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_scratch(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
