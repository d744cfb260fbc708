#include "bench/optimizer_formats.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"
#include "bench/parts.h"
#include "ops/optimizer/optimizer.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

struct MomentFormats {
  TensorFormat first, second;
};

TensorFormat scaled(DType dtype, ScaleBlock block, ScaleType type = ScaleType::f32) {
  TensorFormat format = plain(dtype);
  format.policy = ScalePolicy::current;
  format.block = block;
  format.scale_type = type;
  return format;
}
TensorFormat stochastic(TensorFormat format) {
  format.rounding = Rounding::stochastic;
  return format;
}

std::vector<MomentFormats> formats_in_use() {
  using per::tensor;
  const ScaleBlock group = kStoredBlock;
  const TensorFormat bf16 = plain(DType::bf16);
  const TensorFormat f16 = scaled(DType::f16, group);
  const TensorFormat e4m3 = scaled(DType::e4m3, group);
  TensorFormat expanded = e4m3;
  expanded.expanded = true;
  return {
      {bf16, bf16},
      {stochastic(bf16), stochastic(bf16)},
      {bf16, f16},
      {f16, f16},
      {scaled(DType::e4m3, tensor, ScaleType::pow2), scaled(DType::f16, tensor, ScaleType::pow2)},
      {e4m3, f16},
      {e4m3, bf16},
      {e4m3, stochastic(bf16)},
      {stochastic(e4m3), f16},
      {scaled(DType::e4m3, tensor), scaled(DType::e5m2, tensor)},
      {e4m3, scaled(DType::e5m2, group)},
      {e4m3, e4m3},
      {expanded, expanded},
      {scaled(DType::e4m3, tensor), scaled(DType::e4m3, tensor)}};
}

/// A tensor of zeros in a format.
struct Stored {
  TensorFormat format;
  Tensor codes, scales;

  Stored(Device& device, const TensorFormat& how, int64_t count)
      : format(how), codes(device, how.dtype, {count}, MemoryCategory::workspace) {
    fill_zero(device, codes);
    if (const int64_t needed = stored_scales(how, count); needed > 0) {
      std::vector<float> ones(static_cast<size_t>(needed), 1.0F);
      if (how.block == per::tensor) {
        ones[1] = 0.0F;  // an amax
      }
      scales = Tensor(device, DType::f32, {needed}, MemoryCategory::workspace);
      copy_from_host(device, scales, ones.data());
    }
  }
  StoredTensor view() const {
    return {codes.view(), format, scales.empty() ? View{} : scales.view()};
  }
  double bytes() const {
    return static_cast<double>(codes.view().bytes() + (scales.empty() ? 0 : scales.view().bytes()));
  }
};

/// A pair of moments, and the difference of their updates from the exact ones.
struct Candidate {
  Stored first, second;
  double difference = 0;

  Candidate(Device& device, const MomentFormats& formats, int64_t count)
      : first(device, formats.first, count), second(device, formats.second, count) {}

  /// The update of one step, into `weight`.
  void step(Device& device, const Tensor& weight, const Tensor& gradient, double beta2,
            uint64_t index, const ops::StepControl* control) const {
    ops::fill(device.stream(), weight, 0.0F);
    ops::adamw(device.stream(),
               {.weight = weight.view(),
                .gradient = gradient.view(),
                .moment1 = first.view(),
                .moment2 = second.view(),
                .copy = {},
                .beta1 = 0.9,
                .beta2 = beta2,
                .eps = 1e-30,
                .weight_decay = 0.0,
                .rounding = {.seed = 1, .tensor = index}},
               control);
  }
};

/// Uniform in (0, 1].
double uniform(uint32_t bits) {
  return (static_cast<double>(bits) + 1.0) * 0x1p-32;
}

/// Standard normal (Box and Muller).
double normal(const PhiloxBlock& bits) {
  return std::sqrt(-2.0 * std::log(uniform(bits.word[0]))) *
         std::cos(2.0 * std::numbers::pi * uniform(bits.word[1]));
}

/// Student's t with 5 degrees of freedom (Bailey, "Polar generation of random variates with the
/// t-distribution", 1994).
double student(const PhiloxBlock& bits) {
  constexpr double kFreedom = 5.0;
  return std::sqrt(kFreedom * (std::pow(uniform(bits.word[0]), -2.0 / kFreedom) - 1.0)) *
         std::cos(2.0 * std::numbers::pi * uniform(bits.word[1]));
}

class Gradients {
 public:
  explicit Gradients(const OptimizerSimulation& simulation)
      : seed_(simulation.seed), scales_(static_cast<size_t>(simulation.rows * simulation.columns)) {
    const auto log_normal = [&](uint64_t purpose, int64_t i) {
      const uint64_t key = philox_key(seed_, purpose);
      return std::exp(simulation.deviation * normal(philox(key, 0, static_cast<uint64_t>(i))));
    };
    for (int64_t row = 0; row < simulation.rows; ++row) {
      const double of_row = log_normal(1, row);
      for (int64_t column = 0; column < simulation.columns; ++column) {
        scales_[static_cast<size_t>(row * simulation.columns + column)] =
            1e-3 * of_row * log_normal(2, column);
      }
    }
  }

  void draw(int64_t step, std::vector<float>& values) const {
    const uint64_t key = philox_key(seed_, 3);
    values.resize(scales_.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const PhiloxBlock bits = philox(key, static_cast<uint64_t>(step), i);
      values[i] = static_cast<float>(scales_[i] * student(bits));
    }
  }

 private:
  uint64_t seed_;
  std::vector<double> scales_;
};

}  // namespace

std::vector<OptimizerFormatError> optimizer_format_errors(Device& device,
                                                          const OptimizerSimulation& simulation) {
  const int64_t count = simulation.rows * simulation.columns;
  const Tensor gradient(device, DType::f32, {count}, MemoryCategory::workspace);
  const Tensor weight(device, DType::f32, {count}, MemoryCategory::workspace);
  const Buffer control_memory(device, sizeof(ops::StepControl), MemoryCategory::workspace);
  ops::StepControl control = {};
  control.lr = 1.0;
  control.gradient_factor = 1.0F;
  Candidate exact(device, {plain(DType::f32), plain(DType::f32)}, count);
  std::vector<Candidate> candidates;
  for (const MomentFormats& formats : formats_in_use()) {
    candidates.emplace_back(device, formats, count);
  }
  const Gradients gradients(simulation);
  std::vector<float> values;
  std::vector<float> wanted(static_cast<size_t>(count));
  double norm = 0;
  for (int64_t step = 0; step < simulation.steps; ++step) {
    gradients.draw(step, values);
    copy_from_host(device, gradient, values.data());
    control.applied_steps = step + 1;
    device.copy_from_host(control_memory.data(), &control, sizeof(control));
    const auto* device_control = static_cast<const ops::StepControl*>(control_memory.data());
    const bool compared = step >= simulation.steps - simulation.compared;
    exact.step(device, weight, gradient, simulation.beta2, 0, device_control);
    if (compared) {
      copy_to_host(device, wanted.data(), weight);
      for (const float value : wanted) {
        norm += std::pow(double{value}, 2);
      }
    }
    for (size_t i = 0; i < candidates.size(); ++i) {
      candidates[i].step(device, weight, gradient, simulation.beta2, i + 1, device_control);
      if (compared) {
        copy_to_host(device, values.data(), weight);
        for (size_t j = 0; j < values.size(); ++j) {
          candidates[i].difference += std::pow(double{values[j]} - double{wanted[j]}, 2);
        }
      }
    }
  }
  std::vector<OptimizerFormatError> errors;
  for (const Candidate& candidate : candidates) {
    errors.push_back(
        {describe(candidate.first.format), describe(candidate.second.format),
         (candidate.first.bytes() + candidate.second.bytes()) / static_cast<double>(count),
         std::sqrt(candidate.difference / norm)});
  }
  return errors;
}

namespace {

Json measure_optimizer_formats(Device& device, const BenchOptions& options) {
  OptimizerSimulation simulation;
  simulation.beta2 = options.beta2;
  simulation.steps = options.steps;
  if (options.beta2 >= 1.0 || options.steps < simulation.compared) {
    throw ConfigError(
        fmt::format("--beta2 must be below 1, and --steps at least {}", simulation.compared));
  }
  Json results = Json::array();
  for (const OptimizerFormatError& result : optimizer_format_errors(device, simulation)) {
    results.push_back({{"moment1", result.moment1},
                       {"moment2", result.moment2},
                       {"bytes_per_parameter", result.bytes_per_parameter},
                       {"error", result.error}});
  }
  return {{"beta2", simulation.beta2}, {"steps", simulation.steps}, {"results", results}};
}

void add_optimizer_formats_options(Arguments part, BenchOptions& options) {
  part.option("--beta2", options.beta2, 1e-3, "Decay of the second moment");
  part.option("--steps", options.steps, 1, "Steps of the simulation; the last 20 are compared");
}

}  // namespace

const BenchPart kOptimizerFormatsBench = {
    .name = "optimizer-formats",
    .help = "Error of AdamW's update by the formats of its moments",
    .example = "fp8train bench optimizer-formats --steps 100",
    .add_options = add_optimizer_formats_options,
    .measure = measure_optimizer_formats,
    .is_timed = false};

}  // namespace fp8train
