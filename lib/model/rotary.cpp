#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fp8train {
namespace {

/// As in Llama 3.1: wavelengths longer than the low-frequency limit are stretched by `factor`,
/// short ones stay as they are, those between are interpolated.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  if (wavelength < original / scaling.high_freq_factor) {
    return frequency;
  }
  if (wavelength > original / scaling.low_freq_factor) {
    return frequency / scaling.factor;
  }
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// YaRN divides slow pairs by `factor` and leaves fast ones; between the pairs that rotate
/// beta_fast and beta_slow times within the original context lies a ramp.
void stretch_yarn(const ModelConfig& config, const RopeScaling& scaling,
                  std::vector<double>& frequencies) {
  const auto dim = static_cast<double>(config.head_dim);
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const auto pair_of = [&](double rotations) {
    return dim * std::log(original / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.rope_theta));
  };
  double low = pair_of(scaling.beta_fast);
  double high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    high += 0.001;  // as upstream: no division by zero
  }
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const double slow = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    frequencies[j] = slow * frequencies[j] / scaling.factor + (1.0 - slow) * frequencies[j];
  }
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

std::vector<double> plain_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (int64_t j = 0; j < config.head_dim / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(config.head_dim);
    frequencies.push_back(std::pow(config.rope_theta, exponent));
  }
  return frequencies;
}

}  // namespace

std::vector<double> rotary_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies = plain_frequencies(config);
  if (!config.rope_scaling) {
    return frequencies;
  }
  const RopeScaling& scaling = *config.rope_scaling;
  switch (scaling.type) {
    case RopeType::dynamic:
      break;
    case RopeType::linear:
      for (double& frequency : frequencies) {
        frequency /= scaling.factor;
      }
      break;
    case RopeType::llama3:
      for (double& frequency : frequencies) {
        frequency = llama3_frequency(frequency, scaling);
      }
      break;
    case RopeType::yarn:
      stretch_yarn(config, scaling, frequencies);
      break;
  }
  return frequencies;
}

double rotary_attention_factor(const ModelConfig& config) {
  if (!config.rope_scaling || config.rope_scaling->type != RopeType::yarn) {
    return 1.0;
  }
  const RopeScaling& scaling = *config.rope_scaling;
  if (scaling.attention_factor > 0.0) {
    return scaling.attention_factor;
  }
  if (scaling.mscale != 0.0 && scaling.mscale_all_dim != 0.0) {
    return yarn_scale(scaling.factor, scaling.mscale) /
           yarn_scale(scaling.factor, scaling.mscale_all_dim);
  }
  return yarn_scale(scaling.factor, 1.0);
}

}  // namespace fp8train
