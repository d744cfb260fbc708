#pragma once
// Lines of files that may be compressed, read in pieces; records of JSON among them: an object in
// each line, or the elements of one array.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/readers/data_format.h"

namespace fp8train {

/// Calls `visit` with each line, without its line feed, and its number from 1 on. Throws DataError
/// with file and line if a line is longer than 64 MiB, and as ByteStream does.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view line, int64_t number)>& visit);
/// Calls `visit` with each line that is not blank, or, of a file that begins with a [, with each
/// element of that array; `where` is "FILE:NUMBER" of the line where it begins. A byte order mark
/// is left out. Throws as for_each_line() does, and DataError for an array that is not well-formed
/// or an element that is longer than 64 MiB.
void for_each_json_line(
    const std::filesystem::path& path,
    const std::function<void(std::string_view line, const std::string& where)>& visit);

/// Returns the first record of the file that can be parsed, of lines that begin as an object does;
/// null where there is none, also where the file begins like an array but is not one. Throws as
/// for_each_line() does for a file that begins like JSON, and as ByteStream does.
nlohmann::json first_record(const std::filesystem::path& path);

/// Parses a line of JSON. NaN and infinities, which Python writes, are null. Throws DataError,
/// which begins with `where` and names the error and its column.
nlohmann::json parse_json_line(std::string_view line, const std::string& where);

/// A line of JSON that is an object. The constructor, at(), text() and fail() throw DataError,
/// which begins with `where`.
class JsonRecord {
 public:
  JsonRecord(std::string_view line, std::string where);

  const nlohmann::json& value() const { return value_; }
  const std::string& where() const { return where_; }

  /// Returns the value of the first of `keys` that the object has. If it has none, the error lists
  /// the keys that it has, and ends with `advice`.
  const nlohmann::json& at(std::initializer_list<std::string_view> keys,
                           std::string_view advice) const;
  /// Returns a value that must be a string; the error calls it `key`.
  std::string text(const nlohmann::json& value, std::string_view key) const;

  /// Throws DataError: "WHERE: WHAT".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string where_;
  nlohmann::json value_;
};

/// Notes on the records of one file while it is read from front to end: bad records are an error or
/// left out, and keys that are not read are named.
class RecordNotes {
 public:
  RecordNotes(const std::filesystem::path& path, const RecordRules& rules)
      : path_(path.string()), rules_(rules) {}

  /// Returns what `read` makes of a record; nothing where it throws DataError, which is noted.
  template <typename Read>
  auto read(const Read& read) -> std::optional<decltype(read())> {
    try {
      return read();
    } catch (const DataError& error) {
      note_bad(error.what());
      return std::nullopt;
    }
  }

  void ignore_key(const std::string& key);
  /// Notes the keys of an object but for those that are read.
  void ignore_keys(const nlohmann::json& object, std::initializer_list<std::string_view> read);

  /// To be called behind the last record. Where some were bad, throws DataError with the first one
  /// and the number of all, or warns with the first three, as the rules say. Tells which keys were
  /// not read.
  void finish() const;

 private:
  void note_bad(std::string what);

  std::string path_;
  const RecordRules& rules_;
  int64_t bad_ = 0;
  std::vector<std::string> first_bad_;
  std::set<std::string> ignored_;
};

}  // namespace fp8train
