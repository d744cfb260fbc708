#include "train/records/speed_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "train/records/metric_list.h"
#include "train/records/run_records.h"

namespace fp8train {
namespace {

void add_gpu(MetricLine& line, const GpuState& gpu) {
  if (gpu.watts) {
    line.add("gpu_watts", rounded(*gpu.watts));
  }
  if (gpu.clock_mhz) {
    line.add("gpu_clock_mhz", rounded(*gpu.clock_mhz));
  }
  if (gpu.celsius) {
    line.add("gpu_celsius", rounded(*gpu.celsius));
  }
  if (!gpu.throttled_by.empty()) {
    line.add("gpu_throttled_by",
             std::string_view(fmt::format("{}", fmt::join(gpu.throttled_by, ", "))));
  }
}

}  // namespace

double rounded(double value) {
  constexpr int kDigits = 5;
  return std::strtod(fmt::format("{:.{}g}", value, kDigits).c_str(), nullptr);
}

void add_speed(MetricLine& line, const StepMetrics& metrics) {
  line.add("tokens_per_second", rounded(metrics.tokens_per_second))
      .add("seconds_per_step", rounded(metrics.seconds_per_step))
      .add("tflops", rounded(metrics.tflops));
  if (metrics.mfu) {
    line.add("mfu", rounded(*metrics.mfu));
  }
  if (metrics.speed_of_light) {
    line.add("speed_of_light", rounded(*metrics.speed_of_light));
  }
  if (metrics.gpu) {
    add_gpu(line, *metrics.gpu);
  }
}

}  // namespace fp8train
