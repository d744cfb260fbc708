#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "ops/cast/quantize.h"
#include "ops/op_test_support.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

/// One slot as TransformerEngine keeps it (pytorch/quantization.py): row 0 stages the amax of
/// the step, rows 1.. are shifted by one each time. A value that is not finite is dropped.
struct RollingHistory {
  explicit RollingHistory(int64_t length) : rows(static_cast<size_t>(length), 0.0F) {}

  void update(float amax, float format_max, const DelayedScaling& rule) {
    if (amax == 0.0F || !std::isfinite(amax)) {
      return;
    }
    rows[0] = amax;
    const float window = rule.algorithm == AmaxAlgorithm::max
                             ? *std::max_element(rows.begin(), rows.end())
                             : rows[0];
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    rows.back() = amax;
    rows.front() = 0.0F;
    scale = std::min(std::ldexp(format_max, -rule.margin) / window, kLargest);
  }

  std::vector<float> rows;
  float scale = 1.0F;
};

/// The device state on the host.
struct Slots {
  Slots(int64_t slots, int64_t window, std::vector<float> maxima)
      : amax(slots),
        history(slots * window),
        scale(slots, 1.0F),
        scale_inv(slots, 1.0F),
        format_max(std::move(maxima)),
        cursor(slots),
        length(window) {}

  ops::DelayedScalingState state() {
    return {static_cast<int64_t>(amax.size()),
            length,
            amax.data(),
            history.data(),
            cursor.data(),
            scale.data(),
            scale_inv.data(),
            format_max.data()};
  }

  std::vector<float> amax, history, scale, scale_inv, format_max;
  std::vector<int32_t> cursor;
  int64_t length;
};

float random_amax(std::mt19937& generator) {
  switch (generator() % 12) {
    case 0:
      return 0.0F;
    case 1:
      return INFINITY;
    case 2:
      return NAN;
    case 3:
      return 1e-42F;  // the quotient overflows
    default: {
      // One draw after the other: processors differ in the order in which arguments are computed.
      const int exponent = static_cast<int>(generator() % 40) - 20;
      return std::ldexp(1.0F + static_cast<float>(generator() % 1000) / 1000.0F, exponent);
    }
  }
}

}  // namespace

TEST_CASE("the ring of amax values equals TransformerEngine's shifted history", "[ops]") {
  const int64_t slot_count = 37;
  std::mt19937 generator(21);
  for (const int64_t length : {1, 2, 5, 16}) {
    for (const AmaxAlgorithm algorithm : {AmaxAlgorithm::max, AmaxAlgorithm::most_recent}) {
      DelayedScaling rule;
      rule.algorithm = algorithm;
      rule.margin = static_cast<int>(length % 3);
      std::vector<float> maxima;
      for (int64_t s = 0; s < slot_count; ++s) {
        maxima.push_back(s % 2 == 0 ? kMaxE4M3 : kMaxE5M2);
      }
      Slots slots(slot_count, length, maxima);
      std::vector<RollingHistory> expected(static_cast<size_t>(slot_count), RollingHistory(length));
      for (int step = 0; step < 60; ++step) {
        for (size_t s = 0; s < slots.amax.size(); ++s) {
          slots.amax[s] = random_amax(generator);
          expected[s].update(slots.amax[s], maxima[s], rule);
        }
        ops::update_delayed_scaling(cpu_stream(), slots.state(), rule);
        for (size_t s = 0; s < slots.amax.size(); ++s) {
          REQUIRE(slots.amax[s] == 0.0F);
          REQUIRE(slots.scale[s] == expected[s].scale);
          REQUIRE(slots.scale_inv[s] == 1.0F / expected[s].scale);
        }
      }
    }
  }
}

TEST_CASE("unused and overflowing slots keep history and scale", "[ops]") {
  Slots slots(3, 4, {kMaxE4M3, kMaxE4M3, kMaxE4M3});
  slots.amax = {2.0F, 2.0F, 2.0F};
  const DelayedScaling rule;
  ops::update_delayed_scaling(cpu_stream(), slots.state(), rule);
  CHECK(slots.scale == std::vector<float>(3, 224.0F));
  const std::vector<float> history = slots.history;
  const std::vector<int32_t> cursor = slots.cursor;
  slots.amax = {0.0F, INFINITY, NAN};
  ops::update_delayed_scaling(cpu_stream(), slots.state(), rule);
  CHECK(slots.scale == std::vector<float>(3, 224.0F));
  CHECK(slots.history == history);
  CHECK(slots.cursor == cursor);
  CHECK(slots.amax == std::vector<float>(3, 0.0F));
}

TEST_CASE("a window of steps takes in what is unused or overflows as 0", "[ops]") {
  Slots slots(3, 2, {kMaxE4M3, kMaxE4M3, kMaxE4M3});
  ops::DelayedScalingState state = slots.state();
  state.per_step = state.pow2 = true;
  const DelayedScaling rule;
  slots.amax = {2.0F, 2.0F, 2.0F};
  ops::update_delayed_scaling(cpu_stream(), state, rule);
  CHECK(slots.scale == std::vector<float>(3, 128.0F));
  slots.amax = {0.0F, INFINITY, NAN};
  ops::update_delayed_scaling(cpu_stream(), state, rule);
  CHECK(slots.scale == std::vector<float>(3, 128.0F));  // 2 is still in the window
  CHECK(slots.history == std::vector<float>{0, 0, 0, 2, 2, 2});
  slots.amax = {0.0F, 0.0F, 1.0F};
  ops::update_delayed_scaling(cpu_stream(), state, rule);
  CHECK(slots.scale == std::vector<float>{128.0F, 128.0F, 256.0F});  // all 0: as it was
}

TEST_CASE("delayed scaling gives the same bits at every level and thread count", "[ops]") {
  REQUIRE(same_everywhere([](const ops::OpTable& table) {
    std::mt19937 generator(22);
    Slots slots(301, 128, std::vector<float>(301, kMaxE5M2));
    const DelayedScaling rule;
    Bits bits;
    for (int step = 0; step < 10; ++step) {
      for (float& amax : slots.amax) {
        amax = random_amax(generator);
      }
      ops::DelayedScalingState state = slots.state();
      state.pow2 = state.per_step = step >= 5;
      table.update_delayed_scaling(cpu_stream(), state, rule);
      for (const float scale : slots.scale) {
        bits.add_value(scale);
      }
    }
    return bits;
  }));
}

TEST_CASE("the current scale follows TransformerEngine's rule, degenerate cases included",
          "[ops]") {
  struct Case {
    float amax, scale, pow2_scale;
  };
  const float flt_max_pow2 = 0x1p127F;
  const Case cases[] = {{448.0F, 1.0F, 1.0F},
                        {2.0F, 224.0F, 128.0F},
                        {3.0F, 448.0F / 3.0F, 128.0F},
                        {1e6F, 448.0F / 1e6F, 0x1p-12F},
                        {0.0F, 1.0F, 1.0F},
                        {INFINITY, 1.0F, 1.0F},
                        {NAN, 1.0F, 1.0F},
                        {1e-42F, kLargest, flt_max_pow2}};
  TensorFormat format;
  format.dtype = DType::e4m3;
  format.policy = ScalePolicy::current;
  for (const Case& c : cases) {
    float scale = 0;
    float scale_inv = 0;
    format.scale_type = ScaleType::f32;
    ops::compute_current_scale(cpu_stream(), &c.amax, format, &scale, &scale_inv);
    CHECK(scale == c.scale);
    CHECK(scale_inv == 1.0F / c.scale);
    format.scale_type = ScaleType::pow2;
    ops::compute_current_scale(cpu_stream(), &c.amax, format, &scale, &scale_inv);
    CHECK(scale == c.pow2_scale);
    CHECK(scale_inv == 1.0F / c.pow2_scale);
  }
}
