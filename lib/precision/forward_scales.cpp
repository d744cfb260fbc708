// The scales of a forward pass, for a backward pass that runs after forward passes of other
// micro-batches have moved them: it reads saved codes, and casts again where it recomputes.

#include "ops/pointwise/elementwise.h"
#include "precision/scaling_state.h"

namespace fp8train {

template <typename Visit>
void ScalingState::for_each_forward_group(const Visit& visit) const {
  for (const auto& group : groups_) {
    if (group->pass == ScalingPass::forward) {
      visit(*group);
    }
  }
}

/// fp32 to fp32: the bits.
void ScalingState::copy_forward_scales(Stream stream, const View& stored, bool back) const {
  auto* next = stored.as<float>();
  for_each_forward_group([&](const Group& group) {
    for (const View& values : {group.amax, group.scale.view(), group.scale_inv.view()}) {
      const View copy = {next, DType::f32, values.shape};
      ops::cast(stream, back ? copy : values, back ? values : copy);
      next += values.count();
    }
  });
}

ScalingState::ForwardScales ScalingState::make_forward_scales() const {
  int64_t slots = 0;
  for_each_forward_group(
      [&](const Group& group) { slots += static_cast<int64_t>(group.slots.size()); });
  ForwardScales stored;
  if (slots > 0) {
    stored.values = Tensor(*device_, DType::f32, {3, slots}, MemoryCategory::scaling_state);
  }
  return stored;
}

void ScalingState::store_forward_scales(Stream stream, ForwardScales& stored) const {
  copy_forward_scales(stream, stored.values, false);
  stored.scales_now.clear();
  for_each_forward_group([&](const Group& group) {
    for (const ScalingSlot* slot : group.slots) {
      stored.scales_now.push_back(slot->scales_now);
    }
  });
}

void ScalingState::restore_forward_scales(Stream stream, const ForwardScales& stored) const {
  copy_forward_scales(stream, stored.values.view(), true);
  size_t next = 0;
  for_each_forward_group([&](const Group& group) {
    for (ScalingSlot* slot : group.slots) {
      slot->scales_now = stored.scales_now[next++];
    }
  });
}

}  // namespace fp8train
