#include "model/rotary.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace fp8train;

TEST_CASE("frequencies fall from 1 to nearly 1 / theta") {
  ModelConfig config;
  config.head_dim = 8;
  config.rope_theta = 10000.0;
  const std::vector<double> frequencies = rotary_frequencies(config);
  REQUIRE(frequencies.size() == 4);
  CHECK(frequencies[0] == 1.0);
  CHECK(frequencies[2] == Approx(0.01));
}

TEST_CASE("llama3 scaling keeps short wavelengths and stretches long ones") {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 500000.0;
  const std::vector<double> plain = rotary_frequencies(config);
  config.rope_scaling = llama3_rope_scaling(8.0);
  const std::vector<double> scaled = rotary_frequencies(config);
  CHECK(scaled.front() == plain.front());
  CHECK(scaled.back() == Approx(plain.back() / 8));
  bool between = false;
  for (size_t j = 0; j < plain.size(); ++j) {
    CHECK(scaled[j] <= plain[j]);
    CHECK(scaled[j] >= plain[j] / 8 * (1 - 1e-12));
    between = between || (scaled[j] < 0.9 * plain[j] && scaled[j] > 1.1 * plain[j] / 8);
  }
  CHECK(between);
}
