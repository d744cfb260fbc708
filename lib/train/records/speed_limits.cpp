#include "train/records/speed_limits.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/dry_run.h"
#include "engine/step_time.h"

namespace fp8train {
namespace {

constexpr int64_t kSmallestProduct = 512, kLargestProduct = 2048;
constexpr double kProductSeconds = 2e-3;  // beyond which the start of threads hardly counts
constexpr double kShareOfTime = 0.01;
constexpr size_t kFirstSamples = 3;
constexpr int kMoreSamples = 8, kMaxMoreSamples = 64;

/// Times products of twice the size again and again, until one takes long enough.
std::unique_ptr<GemmRate> first_rate(Device& device, DType dtype) {
  std::unique_ptr<GemmRate> rate;
  double seconds = 0;
  for (int64_t size = kSmallestProduct; size <= kLargestProduct && seconds < kProductSeconds;
       size *= 2) {
    rate.reset();  // its operands
    rate = std::make_unique<GemmRate>(device, dtype, std::vector<int64_t>{size});
    while (rate->samples() < kFirstSamples) {
      rate->measure();
    }
    seconds = 2 * std::pow(static_cast<double>(size), 3) / rate->highest_flops_per_second();
  }
  return rate;
}

}  // namespace

SpeedLimits::SpeedLimits(DeviceKind kind, const DeviceTraits& traits, const GpuKind* gpu,
                         const Topology& ranks)
    : traits_(traits),
      ranks_(ranks),
      gpu_(gpu),
      cpu_(kind == DeviceKind::cpu ? make_device(DeviceKind::cpu) : nullptr) {}

void SpeedLimits::measure(DType dtype, double seconds, double achieved) {
  if (cpu_ == nullptr) {
    return;
  }
  seconds_ += seconds;
  if (rate_ == nullptr) {
    try {
      rate_ = first_rate(*cpu_, dtype);
    } catch (const DeviceError&) {
      return;
    }
  }
  if (rate_->seconds() < kShareOfTime * seconds_) {
    rate_->measure();
  }
  // Other programs may have disturbed all samples.
  for (int i = 0; i < kMoreSamples && rate_->highest_flops_per_second() < achieved &&
                  more_samples_ < kMaxMoreSamples;
       ++i, ++more_samples_) {
    rate_->measure();
  }
}

std::optional<double> SpeedLimits::flops_per_second() const {
  if (gpu_ != nullptr) {
    return gpu_->tera_flops_16bit * 1e12;
  }
  return rate_ != nullptr ? std::optional(rate_->highest_flops_per_second()) : std::nullopt;
}

void SpeedLimits::predict(const EngineSettings& of_run) {
  if (plan_ == of_run.plan.name || (gpu_ == nullptr && cpu_ == nullptr)) {
    return;
  }
  plan_ = of_run.plan.name;
  EngineSettings settings = of_run;  // of a step that is compared with the prediction
  settings.plain_steps.clear();
  settings.step.decoder.moe.capacity_warmup = 0;
  const StageRuns runs =
      dry_run_stages(settings, ranks_.size(), dry_runs_on(traits_, ranks_, gpu_ != nullptr));
  if (gpu_ != nullptr) {
    predicted_ = step_time(settings, runs, ranks_, *gpu_).total();
    return;
  }
  stage_flops_.clear();
  for (const size_t index : runs.of_stage) {
    const OpCounters& work = runs.runs[index].work;
    stage_flops_.push_back(work.gemm_flops + work.attention_flops);
  }
}

std::optional<double> SpeedLimits::step_seconds(const EngineSettings& settings,
                                                const std::vector<double>& idle) {
  const std::optional<double> rate = flops_per_second();
  if (!rate) {
    return std::nullopt;
  }
  predict(settings);
  if (gpu_ != nullptr) {
    return predicted_;
  }
  double longest = 0;
  for (size_t stage = 0; stage < stage_flops_.size(); ++stage) {
    const double works = idle.empty() ? 1.0 : 1.0 - idle[stage];
    longest = std::max(longest, stage_flops_[stage] / *rate / works);
  }
  return longest;
}

}  // namespace fp8train
