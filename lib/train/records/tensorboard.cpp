#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "data/utf8.h"
#include "io/event_file.h"
#include "train/records/metric_list.h"
#include "train/records/run_records.h"

namespace fp8train {
namespace {

/// Markdown that shows the text as it is; bytes that are not UTF-8 become U+FFFD.
std::string as_code(std::string_view text) {
  std::string code = "    ";
  for (size_t at = 0; at < text.size();) {
    const size_t length = code_point_length(text, at);
    code += length == 0 ? std::string_view("\uFFFD") : text.substr(at, length);
    code += text[at] == '\n' ? "    " : "";
    at += std::max<size_t>(length, 1);
  }
  return code;
}

/// Adds the scales and amax values of all slots.
void add_histograms(const StepMetrics& metrics, EventSummary& summary) {
  std::vector<double> scales, amax;
  for (const SlotReport& report : *metrics.slots) {
    if (report.slot->format.block == per::tensor) {
      scales.push_back(std::log2(static_cast<double>(report.scale)));
    }
    amax.push_back(std::log2(static_cast<double>(report.sample.amax)));
  }
  summary.histogram("fp8/log2_scale", scales, 1.0).histogram("fp8/log2_amax", amax, 1.0);
}

class TensorBoard : public MetricSink {
 public:
  TensorBoard(const RunDirectory& run, int64_t step) : file_(run.tensorboard(), step) {}

  void line(int64_t step, const MetricLine& line, const StepMetrics* metrics) override {
    EventSummary summary = line.events();
    if (metrics != nullptr && metrics->scaling != nullptr) add_histograms(*metrics, summary);
    file_.write(step, summary);
  }
  void text(int64_t step, const char* title, const std::string& text) override {
    file_.write(step, EventSummary().text(title, as_code(text)));
  }

 private:
  EventFile file_;
};

}  // namespace

std::unique_ptr<MetricSink> open_tensorboard(const RunDirectory& run, int64_t step) {
  return std::make_unique<TensorBoard>(run, step);
}

}  // namespace fp8train
