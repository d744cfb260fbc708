#pragma once
// Lines of files that may be compressed, read in pieces; lines of JSON among them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fp8train {

/// Calls `visit` with each line, without its line feed, and its number from 1 on. Throws DataError
/// with file and line where one is longer than 64 MiB.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view line, int64_t number)>& visit);
/// Does the same for each line that is not blank; `where` is "FILE:NUMBER".
void for_each_json_line(
    const std::filesystem::path& path,
    const std::function<void(std::string_view line, const std::string& where)>& visit);

/// Parses a line of JSON. Throws DataError, which begins with `where` and names the error and its
/// column.
nlohmann::json parse_json_line(std::string_view line, const std::string& where);

/// A line of JSON that is an object. All throw DataError, which begins with `where`.
class JsonRecord {
 public:
  JsonRecord(std::string_view line, std::string where);

  const nlohmann::json& value() const { return value_; }
  const std::string& where() const { return where_; }

  /// The value of the first of `keys` that is there; where none is, the error lists those that are,
  /// and ends with `advice`.
  const nlohmann::json& at(std::initializer_list<std::string_view> keys,
                           std::string_view advice) const;
  /// A value that is a string; `key` is what the error calls it.
  std::string text(const nlohmann::json& value, std::string_view key) const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string where_;
  nlohmann::json value_;
};

}  // namespace fp8train
