#pragma once
// Writes metrics.jsonl: one JSON object per line, each in one write to the system, so that a reader
// sees whole lines while a run continues. Also defines the JSON objects themselves, for
// summary.json and env.json.

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"

namespace fp8train {

/// Returns the text as JSON writes it: in quotes, on one line. Bytes that are not UTF-8 are
/// replaced.
std::string json_quoted(std::string_view text);

/// A flat JSON object built field by field, in order. Numbers that are not finite become null, text
/// that is not UTF-8 is replaced.
class JsonObject {
 public:
  /// Each of these appends a field and returns the object; keys are not checked for duplicates.
  JsonObject& add(std::string_view key, double value);
  template <std::integral Number>
  JsonObject& add(std::string_view key, Number value) {
    return add_raw(key, std::to_string(value));
  }
  JsonObject& add(std::string_view key, bool value);
  JsonObject& add(std::string_view key, std::string_view value);
  JsonObject& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  JsonObject& add(std::string_view key, const JsonObject& value);
  JsonObject& add(std::string_view key, const std::vector<int64_t>& list);

  /// One line, without a line break.
  std::string str() const { return "{" + fields_ + "}"; }

 private:
  JsonObject& add_raw(std::string_view key, std::string_view json);
  std::string fields_;
};

/// An open metrics.jsonl. One thread uses it.
class MetricsWriter {
 public:
  /// Continues `path`. A line cut off by a crash is removed, and with `resume_step` also the lines
  /// whose "step" is above it, which the resumed run writes anew. Throws DeviceError when the file
  /// cannot be opened or written.
  explicit MetricsWriter(const std::filesystem::path& path,
                         std::optional<int64_t> resume_step = {});

  /// Appends a line. Throws DeviceError when it cannot be written whole; the bytes already written
  /// are taken back, so that the next line begins on its own.
  void write(const JsonObject& object);

  /// Returns how many lines with NUL bytes have been removed, which a power failure can leave.
  int64_t damaged_lines() const { return damaged_lines_; }

 private:
  int64_t damaged_lines_;
  AppendedFile file_;
};

/// Returns the highest "step" of the last lines of `path` (1 MiB); 0 where there is none, or no
/// such file. Throws DeviceError when it cannot be read.
int64_t last_step_in(const std::filesystem::path& path);

/// Writes `object` as a file of one indented object, whole or not at all. Throws DeviceError.
void write_json_file(const std::filesystem::path& path, const JsonObject& object);

}  // namespace fp8train
