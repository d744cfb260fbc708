// Scales and windows of MS-AMP's plans against those that MS-AMP's own code made
// (tests/golden/make_msamp.py): tensors of one value are cast by the operands of a linear layer,
// and the state is updated once for each optimizer step.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "nn/quantized_input.h"
#include "numeric/bits.h"
#include "precision/plan.h"

using namespace fp8train;

namespace {

float float_of_hex(const std::string& text) {
  return float_of(static_cast<uint32_t>(std::stoul(text, nullptr, 16)));
}

/// One of MS-AMP's casts.
struct TheirCast {
  float amax = 0, scale = 0;
  bool in_time = false;
};

std::istringstream next_line(std::istream& file, const std::string& kind) {
  std::string line;
  REQUIRE(std::getline(file, line));
  REQUIRE(line.starts_with(kind + " "));
  return std::istringstream(line.substr(kind.size() + 1));
}

std::vector<TheirCast> read_casts(std::istream& file, int count) {
  std::istringstream line = next_line(file, "cast");
  std::vector<TheirCast> casts(static_cast<size_t>(count));
  for (TheirCast& cast : casts) {
    std::string amax, scale;
    REQUIRE(line >> amax >> scale >> cast.in_time);
    cast.amax = float_of_hex(amax);
    cast.scale = float_of_hex(scale);
  }
  return casts;
}

/// The operands of a tensor of MS-AMP's plan, and what casts them.
struct Operand {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ScalingState scaling;
  QuantizedInput input;
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  double norm = 0;

  Operand(const TensorFormat& format, const TensorFormat& other)
      : input(scaling, "layer", {"x", format, other}, {"x", format, other}) {
    scaling.allocate(*device);
    saved.reserve(1 << 12);
    scratch.reserve(1 << 12);
  }
  const ScalingSlot& slot() const { return *scaling.slots().front(); }

  /// Of a tensor [1, 1]; the scale that it was cast with.
  float cast(float value) {
    scaling.read_windows();
    scaling.begin_pass(device->stream());
    const StepContext context = {.device = device.get(),
                                 .stream = device->stream(),
                                 .saved = &saved,
                                 .scratch = &scratch,
                                 .amax_is_clear = true};
    const ArenaScope scope(scratch);
    const View x = allocate(scratch, DType::f32, {1, 1});
    *x.as<float>() = -value;
    input.operands(context, x, {&scratch, &scratch});
    return *slot().scale;
  }
  /// A saved tensor of the slot.
  std::vector<float> saved_values(const std::string& name) const {
    for (const auto& tensor : scaling.save()) {
      if (tensor.name.ends_with("." + name)) {
        return tensor.values;
      }
    }
    FAIL("no " << name << " is saved");
    return {};
  }
  std::vector<float> window() const {
    const std::vector<float> history = saved_values("amax_history");
    const auto count = static_cast<int64_t>(history.size());
    const auto cursor = static_cast<int64_t>(saved_values("cursor").front());
    std::vector<float> newest_first;
    for (int64_t age = 0; age < count; ++age) {
      newest_first.push_back(history[static_cast<size_t>((cursor - age + count) % count)]);
    }
    return newest_first;
  }
};

bool is_usable(float amax) {
  return amax > 0 && std::isfinite(amax);
}

/// What differs, of one run of the file.
struct Differences {
  int casts = 0, in_time = 0, scales = 0, windows = 0, counters = 0;
  int compared = 0;  // casts
  int again = 0;     // casts with the tensor's own scale after the first window has ended
};

Differences compare(std::istream& file) {
  std::istringstream header = next_line(file, "run");
  std::string name;
  int window = 0;
  int updates = 0;
  int casts = 0;
  REQUIRE(header >> name >> window >> updates >> casts);
  CHECK(updates >= 100);
  const PrecisionPlan plan = plan_named("msamp-o1");
  TensorFormat format = name == "e4m3" ? plan.fprop.a : plan.dgrad.a;
  REQUIRE(name_of(format.dtype) == name);
  CHECK(format.delayed.history_length == 16);
  format.delayed.history_length = window;
  Operand ours(format, plan.fprop.b);
  Differences found;
  bool has_ended = false;  // the first window, once
  for (int step = 0; step < updates; ++step) {
    int number = 0;
    for (const TheirCast& theirs : read_casts(file, casts)) {
      const float scale = ours.cast(theirs.amax);
      found.in_time += ours.slot().scales_now == theirs.in_time ? 0 : 1;
      has_ended = has_ended || !theirs.in_time;
      found.again += has_ended && theirs.in_time ? 1 : 0;
      const bool ends_step = ++number == casts;
      const uint64_t due = ours.scaling.due(step, ends_step);
      ours.scaling.update(ours.device->stream(), due, &ours.norm);
      ours.scaling.note_update(due);
      // A tensor without a usable magnitude has codes of 0, or a step that is skipped.
      if (is_usable(theirs.amax) || !theirs.in_time) {
        ++found.compared;
        found.casts += scale == theirs.scale ? 0 : 1;
      }
    }
    std::istringstream state = next_line(file, "state");
    std::string text;
    int counter = 0;
    REQUIRE(state >> counter >> text);
    const int left = std::max(0, window - counter);
    found.counters += ours.saved_values("updates_left").front() == static_cast<float>(left) ? 0 : 1;
    found.scales += *ours.slot().scale == float_of_hex(text) ? 0 : 1;
    const std::vector<float> newest_first = ours.window();
    for (size_t age = 0; state >> text; ++age) {
      found.windows += newest_first.at(age) == float_of_hex(text) ? 0 : 1;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("MS-AMP's windows and scales are what MS-AMP's own code makes of the same values") {
  std::ifstream file(FP8TRAIN_GOLDEN_DIR "/nn/msamp_windows.txt");
  REQUIRE(file.is_open());
  int compared = 0;
  int again = 0;
  for (int run = 0; run < 5; ++run) {
    CAPTURE(run);
    const Differences found = compare(file);
    CHECK(found.casts == 0);
    CHECK(found.in_time == 0);
    CHECK(found.scales == 0);
    CHECK(found.windows == 0);
    CHECK(found.counters == 0);
    compared += found.compared;
    again += found.again;
  }
  CHECK(compared > 1000);
  CHECK(again > 300);
}

TEST_CASE("MS-AMP's weights keep their own scale under TransformerEngine's GEMMs") {
  const std::string name = GENERATE("msamp-o1-te", "msamp-o2-te", "msamp-o3-te");
  CAPTURE(name);
  const PrecisionPlan plan = plan_named(name);
  CHECK(plan.dgrad.b == plan.fprop.b);
  CHECK(plan.fprop.a == plan_named("te-delayed").fprop.a);
  CHECK(plan.dgrad.a == plan_named("te-delayed").dgrad.a);
  const bool stores_codes = name == "msamp-o3-te";
  CHECK((plan.weight == plan.fprop.b) == stores_codes);
  CHECK((plan.parameter_wire == plan.fprop.b) == stores_codes);
  std::ifstream file(FP8TRAIN_GOLDEN_DIR "/nn/msamp_windows.txt");
  int weights = 0;
  int differ = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("weight ")) {
      std::istringstream fields(line.substr(7));
      std::string amax, scale_inv;
      REQUIRE(fields >> amax >> scale_inv);
      Operand ours(plan.fprop.b, plan.fprop.a);
      const float scale = ours.cast(float_of_hex(amax));
      differ += 1.0F / scale == float_of_hex(scale_inv) ? 0 : 1;
      ++weights;
    }
  }
  CHECK(weights == 100);
  CHECK(differ == 0);
}
