#pragma once
// Small files for tests.

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace fp8train::test {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(stream.good());
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  REQUIRE(stream.good());
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// Runs `action`, requires it to throw an `Expected`, and returns the message.
template <typename Expected, typename Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  FAIL("nothing of the expected type was thrown");
  return {};
}

/// A file of ../shared/data, or an empty path (with a notice) where it is absent.
inline std::filesystem::path shared_data(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(FP8TRAIN_SHARED_DATA_DIR) / name;
  if (std::filesystem::exists(path)) {
    return path;
  }
  WARN("skipped: " << path << " is absent");
  return {};
}

}  // namespace fp8train::test
