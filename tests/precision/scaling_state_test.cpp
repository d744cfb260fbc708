#include "precision/scaling_state.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"

using namespace fp8train;

namespace {

TensorFormat delayed(int history, int interval) {
  TensorFormat format = plain(DType::e4m3);
  format.policy = ScalePolicy::delayed;
  format.delayed.history_length = history;
  format.delayed.interval = interval;
  return format;
}

double squared_norm = 0.0;  // of tests in which every amax is finite

}  // namespace

TEST_CASE("an amax that is not finite reaches the norm of the step and leaves the scales alone") {
  const auto device = make_device(DeviceKind::cpu);
  const float bad = GENERATE(INFINITY, NAN);
  ScalingState state;
  const ScalingSlot* slot = state.add("layer", "x", delayed(2, 1));
  const ScalingSlot* other = state.add("layer", "dy", delayed(2, 1));
  state.allocate(*device);
  double norm = 1.5;
  *slot->amax = 2.0F;
  *other->amax = 2.0F;
  state.update(device->stream(), state.due(0), &norm);
  CHECK(norm == 1.5);
  *other->amax = bad;
  state.update(device->stream(), state.due(1), &norm);
  CHECK(std::isnan(norm));
  CHECK(*other->scale == 448.0F / 2.0F);
}

TEST_CASE("scales follow the amax of the window") {
  const auto device = make_device(DeviceKind::cpu);
  ScalingState state;
  const ScalingSlot* slot = state.add("layer", "x", delayed(2, 1));
  TensorFormat gradient = delayed(2, 1);
  gradient.dtype = DType::e5m2;
  const ScalingSlot* other = state.add("layer", "dy", gradient);
  state.allocate(*device);
  CHECK(*slot->scale == 1.0F);
  *slot->amax = 7.0F;
  state.update(device->stream(), state.due(0), &squared_norm);
  CHECK(*slot->scale == 448.0F / 7.0F);
  CHECK(*slot->scale_inv == 1.0F / (448.0F / 7.0F));
  CHECK(*other->scale == 1.0F);  // its amax was 0: untouched
  *slot->amax = 3.5F;
  state.update(device->stream(), state.due(1), &squared_norm);
  CHECK(*slot->scale == 448.0F / 7.0F);  // 7 is still in the window
  *slot->amax = 3.5F;
  *other->amax = 2.0F;
  state.update(device->stream(), state.due(2), &squared_norm);
  CHECK(*slot->scale == 448.0F / 3.5F);
  CHECK(*other->scale == 57344.0F / 2.0F);
}

TEST_CASE("an interval leaves the scales alone between its steps") {
  const auto device = make_device(DeviceKind::cpu);
  ScalingState state;
  const ScalingSlot* slot = state.add("layer", "x", delayed(4, 3));
  state.allocate(*device);
  *slot->amax = 448.0F;
  state.update(device->stream(), state.due(0), &squared_norm);
  CHECK(*slot->scale == 1.0F);
  *slot->amax = 896.0F;
  state.update(device->stream(), state.due(1), &squared_norm);
  CHECK(*slot->scale == 1.0F);
  state.update(device->stream(), state.due(3), &squared_norm);
  CHECK(*slot->scale == 0.5F);
}

TEST_CASE("a saved state continues exactly") {
  const auto device = make_device(DeviceKind::cpu);
  const auto make = [&](ScalingState& state) {
    const ScalingSlot* slot = state.add("layer", "x", delayed(3, 1));
    state.allocate(*device);
    return slot;
  };
  ScalingState a;
  ScalingState b;
  const ScalingSlot* slot_a = make(a);
  const ScalingSlot* slot_b = make(b);
  for (const float amax : {5.0F, 3.0F, 2.0F}) {
    *slot_a->amax = amax;
    a.update(device->stream(), a.due(0), &squared_norm);
  }
  *slot_a->amax = 1.0F;
  b.load(a.save());
  CHECK(*slot_b->amax == 1.0F);
  for (int step = 0; step < 4; ++step) {
    a.update(device->stream(), a.due(0), &squared_norm);
    b.update(device->stream(), b.due(0), &squared_norm);
    CHECK(*slot_a->scale == *slot_b->scale);
    *slot_a->amax = *slot_b->amax = 0.5F;
  }
  ScalingState other;
  other.add("layer", "x", delayed(4, 1));
  other.allocate(*device);
  CHECK_THROWS_AS(other.load(a.save()), CheckpointError);
}

namespace {

/// Slots with two rules, in this order.
std::unique_ptr<ScalingState> slots_of(Device& device, std::initializer_list<const char*> layers) {
  auto state = std::make_unique<ScalingState>();
  for (const char* layer : layers) {
    state->add(layer, "x", delayed(3, 1));
    state->add(layer, "dy", delayed(4, 1));
  }
  state->allocate(device);
  return state;
}

void fill_histories(Device& device, ScalingState& state) {
  for (int step = 1; step <= 5; ++step) {
    for (const auto& slot : state.slots()) {
      *slot->amax = static_cast<float>(step * slot->layer[0]) + (slot->role == "x" ? 1.0F : 2.0F);
    }
    state.update(device.stream(), state.due(0), &squared_norm);
  }
}

std::map<std::string, std::vector<float>> by_name(const ScalingState& state) {
  std::map<std::string, std::vector<float>> values;
  for (const ScalingState::SavedTensor& tensor : state.save()) {
    values[tensor.name] = tensor.values;
  }
  return values;
}

}  // namespace

TEST_CASE("scales are saved by the names of slots: their order and number do not matter") {
  const auto device = make_device(DeviceKind::cpu);
  const auto whole = slots_of(*device, {"a", "b", "c"});
  fill_histories(*device, *whole);
  CHECK(by_name(*whole).contains("scaling.b.dy.amax_history"));
  const auto part = slots_of(*device, {"c", "a"});
  part->load(whole->save());
  for (const auto& [name, values] : by_name(*part)) {
    CAPTURE(name);
    CHECK(values == by_name(*whole).at(name));
  }
}

TEST_CASE("scales of an earlier version, one tensor for all slots with a rule, are loaded") {
  const auto device = make_device(DeviceKind::cpu);
  const auto saved = slots_of(*device, {"a", "b", "c"});
  fill_histories(*device, *saved);
  const auto values = by_name(*saved);
  std::vector<ScalingState::SavedTensor> earlier;
  for (const auto& [role, group, history] : {std::tuple("x", 0, 3), std::tuple("dy", 1, 4)}) {
    for (const char* part : {"amax", "scale", "scale_inv", "amax_history", "cursor"}) {
      const int64_t rows = part == std::string("amax_history") ? history : 1;
      ScalingState::SavedTensor& tensor = earlier.emplace_back();
      tensor.name = "scaling." + std::to_string(group) + "." + part;
      tensor.shape = {3};
      if (rows > 1) {
        tensor.shape = {rows, 3};
      }
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        for (const std::string layer : {"a", "b", "c"}) {
          const std::string name = "scaling." + layer + "." + role + "." + part;
          tensor.values.push_back(values.at(name).at(row));
        }
      }
    }
  }
  const auto loaded = slots_of(*device, {"a", "b", "c"});
  loaded->load(earlier);
  CHECK(by_name(*loaded) == values);
}

TEST_CASE("a pass begins with an amax of 0 where the tensor is its own and the scale current") {
  const auto device = make_device(DeviceKind::cpu);
  TensorFormat current = plain(DType::e4m3);
  current.policy = ScalePolicy::current;
  TensorFormat by_rows = current;
  by_rows.block = per::row;
  ScalingState state;
  const ScalingSlot* x = state.add("layer", "x", current, true);
  const ScalingSlot* w = state.add("layer", "w", current);
  const ScalingSlot* dy = state.add("layer", "dy", current, true);
  const ScalingSlot* stored = state.add("layer", "x", delayed(2, 1), true);
  const ScalingSlot* rows = state.add("layer", "x", by_rows, true);
  const ScalingSlot* last = state.add("other", "w", current);
  state.allocate(*device);
  for (const ScalingSlot* slot : {x, w, dy, stored, rows, last}) {
    *slot->amax = 2.0F;
  }
  state.begin_pass(device->stream());
  for (const ScalingSlot* slot : {x, dy}) {
    CHECK(slot->begins_at_zero);
    CHECK(*slot->amax == 0.0F);
  }
  for (const ScalingSlot* slot : {w, stored, rows, last}) {
    CHECK_FALSE(slot->begins_at_zero);
    CHECK(*slot->amax == 2.0F);
  }
}

TEST_CASE("a saved state continues in the first windows that it has begun again") {
  const auto device = make_device(DeviceKind::cpu);
  struct Pair {
    ScalingState state;
    const ScalingSlot *x, *y;
  };
  const auto make = [&](Pair& pair) {
    TensorFormat format = delayed(3, 1);
    format.delayed.current_at_first = true;
    format.delayed.unit = WindowUnit::step;
    pair.x = pair.state.add("layer", "x", format);
    pair.y = pair.state.add("layer", "y", format);
    pair.state.allocate(*device);
  };
  const auto update = [&](Pair& pair, float amax_of_y) {
    double norm = 0;
    *pair.x->amax = 1.0F;
    *pair.y->amax = amax_of_y;
    pair.state.update(device->stream(), 1, &norm);
    pair.state.note_update(1);
    pair.state.read_windows();
    return pair.state.first_windows();
  };
  Pair a;
  Pair b;
  make(a);
  make(b);
  CHECK(update(a, 1) == FirstWindows::all);
  CHECK(update(a, 1) == FirstWindows::all);
  CHECK(update(a, 1) == FirstWindows::none);
  CHECK(update(a, INFINITY) == FirstWindows::some);
  CHECK(update(a, 1) == FirstWindows::some);
  b.state.load(a.state.save());
  b.state.read_windows();
  CHECK((!b.x->scales_now && b.y->scales_now));
  CHECK(update(b, 1) == FirstWindows::some);
  CHECK(update(b, 1) == FirstWindows::none);
  b.state.restart();
  CHECK(b.state.first_windows() == FirstWindows::all);
}
