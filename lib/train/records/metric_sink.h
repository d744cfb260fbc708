#pragma once
// Destinations of a run's records in addition to metrics.jsonl. A new one is a class in a file of
// its own here, and a line in kSinks (run_records.cpp).

#include <cstdint>
#include <memory>
#include <string>

#include "base/not_copied.h"
#include "io/checkpoint/run_directory.h"

namespace fp8train {

class MetricLine;
struct StepMetrics;

/// An open destination. Its functions throw DeviceError when they cannot write, which ends it and
/// not the run.
class MetricSink : NotCopied {
 public:
  virtual ~MetricSink() = default;

  /// Writes a line of metrics. `metrics` has the casts of a training step; null: an evaluation.
  virtual void line(int64_t step, const MetricLine& line, const StepMetrics* metrics) = 0;
  /// Writes a text, such as that of a sample.
  virtual void text(int64_t step, const char* title, const std::string& text) = 0;
};

/// Opens event files for TensorBoard, which replace the steps after `step` of earlier files. Throws
/// DeviceError when they cannot be written.
std::unique_ptr<MetricSink> open_tensorboard(const RunDirectory& run, int64_t step);

}  // namespace fp8train
