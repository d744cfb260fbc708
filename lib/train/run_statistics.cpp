#include "train/run_statistics.h"

namespace fp8train {

ScalingSummary summarize(const std::vector<SlotReport>& reports) {
  ScalingSummary summary;
  double count = 0;
  double saturated = 0;
  double underflow = 0;
  double worst = 0;
  for (const SlotReport& report : reports) {
    count += static_cast<double>(report.statistics.count);
    saturated += static_cast<double>(report.statistics.saturated);
    underflow += static_cast<double>(report.statistics.underflow);
    if (report.statistics.count == 0) {
      continue;
    }
    const double share = static_cast<double>(report.statistics.underflow) /
                         static_cast<double>(report.statistics.count);
    if (share > worst) {
      worst = share;
      summary.worst_underflow = &report;
    }
  }
  if (count > 0) {
    summary.saturated_percent = 100.0 * saturated / count;
    summary.underflow_percent = 100.0 * underflow / count;
  }
  return summary;
}

}  // namespace fp8train
