#include "train/records/run_statistics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/log.h"
#include "numeric/code_family.h"

namespace fp8train {
namespace {

// Where a warning is due. A scale that follows from the tensor, or from its last steps, clips only
// values above an amax seen before: one in a hundred means that the scale is not of this tensor.
constexpr double kSaturatedPercent = 1.0;
// Normal values whose amax is at the format's maximum lose 0.001 % to zero in e4m3, less in e5m2:
// where one in twenty vanishes, the tensor's range is wider than the format's. Not for int8, whose
// steps are even: small values of a sane tensor vanish there too.
constexpr double kUnderflowPercent = 5.0;
// A tenth of the energy is noise. Normal data has 25 dB in e5m2 and 31 dB in e4m3, so that this
// is not a matter of the format's precision but of scale or outliers.
constexpr double kSnrDb = 10.0;

constexpr int64_t kFewestQuietSteps = 16;
constexpr int64_t kMostQuietSteps = 100;

double percent(uint64_t part, uint64_t count) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(1, count));
}

int64_t quiet_steps(const std::vector<SlotReport>& reports) {
  int64_t longest = kFewestQuietSteps;
  for (const SlotReport& report : reports) {
    const TensorFormat& format = report.slot->format;
    if (format.policy == ScalePolicy::delayed) {
      longest = std::max<int64_t>(longest, format.delayed.history_length);
    }
  }
  return std::min(longest, kMostQuietSteps);
}

void add_snr(std::map<std::string, ClassSnr>& classes, const std::vector<SlotReport>& reports) {
  std::map<std::string, int64_t> slots;
  for (const SlotReport& report : reports) {
    const std::optional<double> snr = report.snr_db();
    if (!snr) {
      continue;
    }
    const std::string& role = report.slot->role;  // "x", or "x.wgrad" where formats differ
    const std::string name = role.substr(0, role.find('.'));
    ClassSnr& one = classes[name];
    if (slots[name] == 0 || *snr < one.worst_db) {
      one.worst_db = *snr;
      one.worst = slot_name(*report.slot);
    }
    one.mean_db += *snr;
    slots[name] += 1;
  }
  for (auto& [name, one] : classes) {
    one.mean_db = std::round(one.mean_db / static_cast<double>(slots[name]) * 100.0) / 100.0;
  }
}

/// "" when the casts of the slot are as they should be.
std::string complaint(const SlotReport& report) {
  const double saturated = saturated_percent(report);
  const double underflow = underflow_percent(report);
  const std::optional<double> snr = report.snr_db();
  if (saturated > kSaturatedPercent) {
    return fmt::format("{:.1f} % of the values are clipped (more than {} %)", saturated,
                       kSaturatedPercent);
  }
  if (underflow > kUnderflowPercent && is_fp8(report.slot->format.dtype)) {
    return fmt::format("{:.1f} % of the values become zero (more than {} %)", underflow,
                       kUnderflowPercent);
  }
  if (snr && *snr < kSnrDb) {
    return fmt::format("the signal-to-noise ratio is {:.1f} dB (less than {} dB)", *snr, kSnrDb);
  }
  return "";
}

std::string advice(const SlotReport& report) {
  if (report.slot->layer.ends_with(".attention")) {
    return "take fp8.attention: forward, or false";
  }
  std::string exempt =
      fmt::format("keep the layer in high precision (fp8.exempt: [{}])", report.slot->layer);
  if (report.slot->format.block != per::tensor) {
    return exempt;
  }
  std::string blocks = "take a plan with a scale for each block, or " + exempt;
  if (report.slot->format.policy != ScalePolicy::delayed) {
    return blocks;
  }
  // A few clipped values can be most of the noise; values that vanish say that the scale is too
  // small.
  const bool clipped = report.statistics.saturated > 0;
  if (clipped && underflow_percent(report) <= kUnderflowPercent) {
    return "try a shorter fp8.interval, a longer fp8.amax_history_len, a larger fp8.margin, " +
           blocks;
  }
  return "try a shorter fp8.amax_history_len, " + blocks;
}

double own_work(const SectionSeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) -
         seconds[static_cast<size_t>(Section::exchange)];
}

double median(const std::vector<SectionSeconds>& of_ranks,
              const std::function<double(const SectionSeconds&)>& value) {
  std::vector<double> values;
  values.reserve(of_ranks.size());
  for (const SectionSeconds& seconds : of_ranks) {
    values.push_back(value(seconds));
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

ScalingSummary summarize(const std::vector<SlotReport>& reports) {
  ScalingSummary summary;
  double count = 0;
  double saturated = 0;
  double underflow = 0;
  std::set<std::string> formats;
  for (const SlotReport& report : reports) {
    formats.insert(code_family(report.slot->format.dtype));
    count += static_cast<double>(report.statistics.count);
    saturated += static_cast<double>(report.statistics.saturated);
    underflow += static_cast<double>(report.statistics.underflow);
  }
  if (count > 0) {
    summary.saturated_percent = 100.0 * saturated / count;
    summary.underflow_percent = 100.0 * underflow / count;
  }
  summary.formats = fmt::format("{}", fmt::join(formats, "+"));
  add_snr(summary.snr, reports);
  return summary;
}

std::string slot_name(const ScalingSlot& slot) {
  return slot.layer + "." + slot.role;
}

double saturated_percent(const SlotReport& report) {
  return percent(report.statistics.saturated, report.statistics.count);
}

double underflow_percent(const SlotReport& report) {
  return percent(report.statistics.underflow, report.statistics.count);
}

std::vector<std::string> ScalingWarnings::after_step(int64_t step,
                                                     const std::vector<SlotReport>& reports) {
  std::vector<std::string> lines;
  if (step <= quiet_steps(reports)) {
    return lines;
  }
  for (const SlotReport& report : reports) {
    const std::string what = complaint(report);
    if (what.empty() || !warned_.insert(report.slot).second || warned_.size() > kMostLines) {
      continue;
    }
    lines.push_back(fmt::format("step {}: {}, {}: {}; {}", step, report.slot->layer,
                                report.slot->role, what, advice(report)));
  }
  return lines;
}

std::vector<std::string> ScalingWarnings::rest() const {
  if (warned_.size() <= kMostLines) {
    return {};
  }
  return {
      fmt::format("{} more tensors lost as much in their casts; logging.tensor_interval writes the "
                  "figures of all to tensors.jsonl",
                  warned_.size() - kMostLines)};
}

void log_warnings(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    log_warning(line);
  }
}

std::optional<Straggler> find_straggler(const std::vector<SectionSeconds>& of_ranks) {
  if (of_ranks.size() < 2) {
    return std::nullopt;
  }
  const auto slowest =
      std::max_element(of_ranks.begin(), of_ranks.end(),
                       [](const auto& a, const auto& b) { return own_work(a) < own_work(b); });
  Straggler found = {.rank = static_cast<int>(slowest - of_ranks.begin()),
                     .seconds = own_work(*slowest),
                     .median_seconds = median(of_ranks, own_work)};
  double furthest = -1;
  for (size_t section = 0; section < kSections; ++section) {
    const double behind =
        (*slowest)[section] -
        median(of_ranks, [section](const SectionSeconds& seconds) { return seconds[section]; });
    if (section != static_cast<size_t>(Section::exchange) && behind > furthest) {
      furthest = behind;
      found.section = static_cast<Section>(section);
    }
  }
  return found;
}

}  // namespace fp8train
