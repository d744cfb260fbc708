#pragma once
// Writes metrics.jsonl: one JSON object per line, each in one write to the system, so that a reader
// sees whole lines while a run continues. Numbers that are not finite become null there and in
// summary.json and env.json, and bytes that are not UTF-8 are replaced.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "base/atomic_file.h"

namespace fp8train {

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
  void write(const nlohmann::ordered_json& object);

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
void write_json_file(const std::filesystem::path& path, const nlohmann::ordered_json& object);

}  // namespace fp8train
