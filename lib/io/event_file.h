#pragma once
// TensorBoard's event files: records of TFRecord form (tensorflow/core/lib/io/record_writer.cc)
// whose content is an Event (tensorboard/compat/proto/event.proto, summary.proto), encoded by hand,
// since it has only a dozen fields. Each record is one write to the system, so that a reader sees
// whole records while a run continues.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/atomic_file.h"

namespace fp8train {

/// Returns the CRC-32C (Castagnoli, reflected, polynomial 0x1EDC6F41), as RFC 3720 B.4 has it.
uint32_t crc32c(std::string_view bytes);

/// The values, texts and histograms that TensorBoard shows of one step.
class EventSummary {
 public:
  /// Adds a value. Values that are not finite are left out: TensorBoard draws them as 0.
  EventSummary& scalar(std::string_view tag, double value);
  /// Adds a text in Markdown.
  EventSummary& text(std::string_view tag, std::string_view markdown);
  /// Adds the counts of `values` in buckets of width `bucket`; values that are not finite are left
  /// out.
  EventSummary& histogram(std::string_view tag, std::span<const double> values, double bucket);

  bool empty() const { return encoded_.empty(); }

 private:
  friend class EventFile;
  std::string encoded_;
};

/// One file of a run, from one start of it to the next.
class EventFile {
 public:
  /// Begins a new file in `folder`, which is made. TensorBoard no longer shows the records of
  /// earlier files there for steps above `resume_step` (SessionLog::START). Throws DeviceError when
  /// it cannot be written.
  EventFile(const std::filesystem::path& folder, int64_t resume_step);

  /// Appends a record; nothing for an empty summary. Throws DeviceError when the record cannot be
  /// written whole; it is taken back then.
  void write(int64_t step, const EventSummary& summary);

 private:
  void write_event(int64_t step, std::string_view content);

  AppendedFile file_;
};

}  // namespace fp8train
