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

TEST_CASE("linear scaling divides all frequencies, dynamic none") {
  ModelConfig config;
  config.head_dim = 64;
  const std::vector<double> plain = rotary_frequencies(config);
  config.rope_scaling = default_rope_scaling(RopeType::linear);
  config.rope_scaling->factor = 4.0;
  const std::vector<double> linear = rotary_frequencies(config);
  config.rope_scaling->type = RopeType::dynamic;
  CHECK(rotary_frequencies(config) == plain);
  for (size_t j = 0; j < plain.size(); ++j) {
    CHECK(linear[j] == Approx(plain[j] / 4.0));
  }
  CHECK(rotary_attention_factor(config) == 1.0);
}

TEST_CASE("YaRN leaves what rotates often, and divides what rotates less than once") {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 10000.0;
  const std::vector<double> plain = rotary_frequencies(config);
  config.rope_scaling = default_rope_scaling(RopeType::yarn);
  config.rope_scaling->factor = 16.0;
  config.rope_scaling->original_max_position_embeddings = 4096;
  config.rope_scaling->truncate = GENERATE(true, false);
  const std::vector<double> scaled = rotary_frequencies(config);
  double last = 1.0;
  size_t between = 0;
  for (size_t j = 0; j < plain.size(); ++j) {
    const double rotations = 4096.0 * plain[j] / (2.0 * 3.14159265358979323846);
    const double ratio = scaled[j] / plain[j];
    CAPTURE(j, rotations, ratio);
    // Whole dimensions widen the ramp by less than one pair at each end.
    const double pair = plain[0] / plain[1];
    if (rotations > 32.0 * pair) CHECK(ratio == Approx(1.0));
    if (rotations < 1.0 / pair) CHECK(ratio == Approx(1.0 / 16.0));
    CHECK(ratio <= last + 1e-12);
    last = ratio;
    between += ratio < 0.99 && ratio > 1.01 / 16.0 ? 1 : 0;
  }
  CHECK(between > 15);
  // 2309.00071, section 3.4: sqrt(1 / t) = 0.1 ln(s) + 1.
  CHECK(rotary_attention_factor(config) == Approx(0.1 * std::log(16.0) + 1.0));
  config.rope_scaling->mscale = config.rope_scaling->mscale_all_dim = 0.7;
  CHECK(rotary_attention_factor(config) == Approx(1.0));
  config.rope_scaling->attention_factor = 1.25;
  CHECK(rotary_attention_factor(config) == 1.25);
}

TEST_CASE("fields of a scaling that contradict each other are named") {
  for (const std::string& name : rope_type_names()) {
    CHECK(rope_type_name(*find_rope_type(name)) == name);
    RopeScaling scaling = default_rope_scaling(*find_rope_type(name));
    scaling.factor = 0.0;
    CHECK(rope_scaling_problem(scaling) == "rope type " + name + " needs a factor");
    scaling.factor = 2.0;
    CHECK(rope_scaling_problem(scaling).empty());
    scaling.high_freq_factor = scaling.low_freq_factor;
    CHECK(rope_scaling_problem(scaling).empty() == (name != "llama3"));
    scaling.high_freq_factor = 4.0;
    scaling.beta_fast = 0.5;
    CHECK(rope_scaling_problem(scaling).empty() == (name != "yarn"));
  }
  CHECK_FALSE(find_rope_type("longrope"));
}
