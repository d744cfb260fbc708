#pragma once
// Code that the readers of JSON records share: bad records are an error or left out, and keys that
// are not read are named.

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/readers/json_lines.h"

namespace fp8train {

/// Notes on the records of one file while it is read from front to end.
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
