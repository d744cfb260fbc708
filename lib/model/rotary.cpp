#include "model/rotary.h"

#include <cmath>
#include <numbers>

namespace fp8train {
namespace {

/// Llama 3.1: wavelengths longer than the low-frequency limit are stretched by `factor`, short ones
/// kept, those between interpolated.
double stretched(double frequency, const Llama3RopeScaling& scaling) {
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

}  // namespace

std::vector<double> rotary_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (int64_t j = 0; j < config.head_dim / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(config.head_dim);
    const double frequency = std::pow(config.rope_theta, exponent);
    frequencies.push_back(config.rope_scaling ? stretched(frequency, *config.rope_scaling)
                                              : frequency);
  }
  return frequencies;
}

}  // namespace fp8train
