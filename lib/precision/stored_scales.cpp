// The scales of earlier passes, for passes that run after later ones have moved them: backward
// passes read saved codes, and cast again where they recompute; weight gradients read codes of
// both.

#include "ops/pointwise/elementwise.h"
#include "precision/scaling_state.h"

namespace fp8train {

template <typename Visit>
void ScalingState::for_each_group(ScalingPass pass, const Visit& visit) const {
  for (const auto& group : groups_) {
    if (group->pass == pass) {
      visit(*group);
    }
  }
}

/// fp32 to fp32: the bits.
void ScalingState::copy_scales(Stream stream, const StoredScales& stored, bool back) const {
  auto* next = stored.values.view().as<float>();
  for_each_group(stored.pass, [&](const Group& group) {
    for (const View& values : {group.amax, group.scale.view(), group.scale_inv.view()}) {
      const View copy = {next, DType::f32, values.shape};
      ops::cast(stream, back ? copy : values, back ? values : copy);
      next += values.count();
    }
  });
}

ScalingState::StoredScales ScalingState::make_stored_scales(ScalingPass pass) const {
  int64_t slots = 0;
  for_each_group(pass,
                 [&](const Group& group) { slots += static_cast<int64_t>(group.slots.size()); });
  StoredScales stored = {.values = {}, .scales_now = {}, .pass = pass};
  if (slots > 0) {
    stored.values = Tensor(*device_, DType::f32, {3, slots}, MemoryCategory::scaling_state);
  }
  return stored;
}

void ScalingState::store_scales(Stream stream, StoredScales& stored) const {
  copy_scales(stream, stored, false);
  stored.scales_now.clear();
  for_each_group(stored.pass, [&](const Group& group) {
    for (const ScalingSlot* slot : group.slots) {
      stored.scales_now.push_back(slot->scales_now);
    }
  });
}

void ScalingState::restore_scales(Stream stream, const StoredScales& stored) const {
  copy_scales(stream, stored, true);
  size_t next = 0;
  for_each_group(stored.pass, [&](const Group& group) {
    for (ScalingSlot* slot : group.slots) {
      slot->scales_now = stored.scales_now[next++];
    }
  });
}

}  // namespace fp8train
