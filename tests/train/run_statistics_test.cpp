#include "train/records/run_statistics.h"

#include <catch2/catch.hpp>

#include "support/small_llama.h"

#include <algorithm>

#include "base/philox.h"
#include "engine/dry_run.h"
#include "engine/engine.h"
#include "support/parameters.h"

using namespace fp8train;
using Catch::Contains;
using Catch::StartsWith;

namespace {

const TensorFormat kDelayed = {
    .dtype = DType::e4m3, .block = per::tensor, .policy = ScalePolicy::delayed};

ScalingSlot slot_of(const std::string& layer, const std::string& role,
                    const TensorFormat& format = kDelayed) {
  ScalingSlot slot;
  slot.layer = layer;
  slot.role = role;
  slot.format = format;
  return slot;
}

/// Shares in percent.
SlotReport report_of(const ScalingSlot& slot, uint64_t saturated, uint64_t underflow,
                     double noise) {
  return {&slot, 1.0F, {100, saturated, underflow}, {1.0, noise, 1.0F}};
}

constexpr double kLittleNoise = 1e-3;
constexpr int64_t kLate = 101;

struct Trained {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  EngineSettings settings;
  std::unique_ptr<Engine> engine;
  ScalingWarnings warnings;
  int64_t step = 0;

  explicit Trained(const PrecisionPlan& plan) {
    settings = test::small_llama("fp32");
    settings.plan = plan;
    engine = std::make_unique<Engine>(*device, settings);
    engine->reserve(dry_run_step(settings, {}).plan);
    engine->model().initialize(3);
    engine->weights_changed();
  }
  std::vector<std::string> train(int64_t steps) {
    std::vector<std::string> lines;
    for (int64_t i = 0; i < steps; ++i) {
      engine->step([this] { return batch(); }, step, 1e-3, true);
      ++step;
      for (std::string& line : warnings.after_step(step, engine->model().scaling().report())) {
        lines.push_back(std::move(line));
      }
    }
    return lines;
  }
  Batch batch() const {
    Batch made;
    made.rows = 2;
    made.columns = 16;
    for (uint64_t i = 0; i < 32; ++i) {
      const PhiloxBlock bits = philox(static_cast<uint64_t>(step), 0, i);
      made.tokens.push_back(static_cast<int32_t>(bits.word[0] % 50));
      made.targets.push_back(static_cast<int32_t>(bits.word[1] % 50));
    }
    return made;
  }
  void multiply_weight(const std::string& name, float factor) {
    for (const auto& parameter : engine->model().parameters().all()) {
      if (parameter->name == name) {
        std::vector<float> values = test::value_on_host(*device, *parameter);
        for (float& value : values) {
          value *= factor;
        }
        set_value(*device, *parameter, values.data());
      }
    }
    engine->weights_changed();
  }
};

}  // namespace

TEST_CASE("a summary has the mean and the worst ratio of each class of tensors") {
  const ScalingSlot x = slot_of("a", "x");
  const ScalingSlot other = slot_of("b", "x.wgrad");
  const ScalingSlot dy = slot_of("b", "dy");
  const ScalingSlot zeros = slot_of("c", "dy");
  const ScalingSummary summary = summarize({report_of(x, 1, 0, 1e-3),
                                            report_of(other, 0, 2, 1e-2),
                                            report_of(dy, 0, 0, 0.1),
                                            {&zeros, 1.0F, {100, 0, 0}, {0, 0, 0}}});
  REQUIRE(summary.snr.size() == 2);
  CHECK(summary.snr.at("x").mean_db == Approx(25.0));
  CHECK(summary.snr.at("x").worst_db == Approx(20.0));
  CHECK(summary.snr.at("x").worst == "b.x.wgrad");
  CHECK(summary.snr.at("dy").mean_db == Approx(10.0));
  CHECK(summary.saturated_percent == Approx(0.25));
  CHECK(summary.underflow_percent == Approx(0.5));
  CHECK(summary.formats == "fp8");
}

TEST_CASE("a summary names the formats of what was cast") {
  const auto slot_in = [](DType type) {
    TensorFormat format = kDelayed;
    format.dtype = type;
    return slot_of("a", "x", format);
  };
  const ScalingSlot fp4 = slot_in(DType::e2m1), int8 = slot_in(DType::i8);
  const ScalingSlot e4m3 = slot_in(DType::e4m3), e5m2 = slot_in(DType::e5m2);
  const auto formats = [](const std::vector<const ScalingSlot*>& slots) {
    std::vector<SlotReport> reports;
    for (const ScalingSlot* slot : slots) {
      reports.push_back(report_of(*slot, 0, 0, kLittleNoise));
    }
    return summarize(reports).formats;
  };
  CHECK(formats({}).empty());
  CHECK(formats({&fp4, &fp4}) == "fp4");
  CHECK(formats({&int8}) == "int8");
  CHECK(formats({&e4m3, &fp4, &e5m2}) == "fp4+fp8");
}

TEST_CASE("each threshold has a line that names layer and role, once for a run") {
  const ScalingSlot up = slot_of("layers.0.mlp.up", "x");
  const ScalingSlot down = slot_of("layers.1.mlp.down", "dy");
  const ScalingSlot head = slot_of("head", "w");
  const ScalingSlot sane = slot_of("layers.1.mlp.up", "w");
  const std::vector<SlotReport> reports = {
      report_of(up, 2, 0, kLittleNoise), report_of(down, 0, 6, kLittleNoise),
      report_of(head, 1, 0, 0.2), report_of(sane, 1, 5, 0.1)};  // at the thresholds, not past
  ScalingWarnings warnings;
  const std::vector<std::string> lines = warnings.after_step(kLate, reports);
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], StartsWith("step 101: layers.0.mlp.up, x: 2.0 % of the values are clipped"));
  CHECK_THAT(lines[0], Contains("fp8.interval") && Contains("fp8.exempt: [layers.0.mlp.up]"));
  CHECK_THAT(lines[1], Contains("layers.1.mlp.down, dy: 6.0 % of the values become zero"));
  CHECK_THAT(lines[1], Contains("shorter fp8.amax_history_len"));
  CHECK_THAT(lines[2], Contains("head, w: the signal-to-noise ratio is 7.0 dB"));
  CHECK_THAT(lines[2], Contains("fp8.interval"));  // one value in a hundred was clipped
  CHECK(warnings.after_step(kLate + 1, reports).empty());
  CHECK(warnings.rest().empty());
}

TEST_CASE("what to try is what the slot's format has") {
  TensorFormat format = kDelayed;
  format.policy = ScalePolicy::current;
  const ScalingSlot current = slot_of("a", "x", format);
  format.block = per::block_1x128;
  const ScalingSlot blocks = slot_of("b", "x", format);
  format.dtype = DType::i8;
  const ScalingSlot integers = slot_of("c", "x", format);
  const std::vector<std::string> lines = ScalingWarnings().after_step(
      kLate, {report_of(current, 2, 0, kLittleNoise), report_of(blocks, 2, 0, kLittleNoise),
              report_of(integers, 0, 9, kLittleNoise)});  // small values vanish in INT8
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], !Contains("fp8.interval") && Contains("a scale for each block"));
  CHECK_THAT(lines[1], !Contains("a scale for each block") && Contains("fp8.exempt: [b]"));
}

TEST_CASE("warnings wait until histories have filled, but not for ever") {
  ScalingSlot slot = slot_of("a", "x");
  const auto first_line = [&slot] {
    ScalingWarnings warnings;
    for (int64_t step = 1; step < 1000; ++step) {
      if (!warnings.after_step(step, {report_of(slot, 50, 0, kLittleNoise)}).empty()) {
        return step;
      }
    }
    return int64_t{0};
  };
  slot.format.delayed.history_length = 4;
  CHECK(first_line() == 17);
  slot.format.delayed.history_length = 40;
  CHECK(first_line() == 41);
  slot.format.delayed.history_length = 1024;
  CHECK(first_line() == 101);
  slot.format.policy = ScalePolicy::current;
  CHECK(first_line() == 17);
}

TEST_CASE("after ten lines the rest are counted") {
  std::vector<ScalingSlot> slots;
  for (int i = 0; i < 13; ++i) {
    slots.push_back(slot_of(std::to_string(i), "x"));
  }
  std::vector<SlotReport> reports;
  for (const ScalingSlot& slot : slots) {
    reports.push_back(report_of(slot, 50, 0, kLittleNoise));
  }
  ScalingWarnings warnings;
  CHECK(warnings.after_step(kLate, reports).size() == 10);
  CHECK(warnings.after_step(kLate + 1, reports).empty());
  REQUIRE(warnings.rest().size() == 1);
  CHECK_THAT(warnings.rest().front(), StartsWith("3 more tensors"));
}

TEST_CASE("a sane run has no warning; a weight that outgrows its scale has, by its name") {
  PrecisionPlan plan = plan_named("te-delayed");
  for (GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    for (TensorFormat* format : {&gemm->a, &gemm->b}) {
      format->delayed.history_length = 4;
    }
  }
  Trained sane(plan);
  CHECK(sane.train(24).empty());
  for (GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    for (TensorFormat* format : {&gemm->a, &gemm->b}) {
      format->delayed.interval = 1000;  // scales stay as the first step leaves them
    }
  }
  Trained stale(plan);
  CHECK(stale.train(20).empty());
  stale.multiply_weight("layers.1.mlp.up.weight", 100.0F);
  const std::vector<std::string> lines = stale.train(1);
  REQUIRE_FALSE(lines.empty());
  CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("layers.1.mlp.up, w: ") != std::string::npos &&
           line.find("% of the values are clipped") != std::string::npos;
  }));
}
