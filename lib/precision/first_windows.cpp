// The first windows of delayed scales with current_at_first: which slots are in their first window,
// and how passes outside of training leave them unchanged.

#include "ops/pointwise/elementwise.h"
#include "precision/scaling_state.h"

namespace fp8train {

void ScalingState::note_update(uint64_t due) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const bool updated = (due >> g & 1U) != 0;
    windows_moved_ = windows_moved_ || (updated && groups_[g]->format.is_current_at_first());
  }
}

void ScalingState::read_windows() {
  if (!windows_moved_) {
    return;
  }
  windows_moved_ = false;
  for (const auto& group : groups_) {
    if (group->format.is_current_at_first()) {
      std::vector<int32_t> left(group->slots.size());
      copy_to_host(*device_, left.data(), group->updates_left);
      for (size_t i = 0; i < left.size(); ++i) {
        group->slots[i]->scales_now = left[i] > 0;
      }
    }
  }
}

FirstWindows ScalingState::first_windows() const {
  size_t slots = 0;
  size_t in_first = 0;
  for (const auto& slot : slots_) {
    if (slot->format.is_current_at_first()) {
      ++slots;
      in_first += slot->scales_now ? 1 : 0;
    }
  }
  const bool all = in_first == slots;
  return in_first == 0 ? FirstWindows::none : all ? FirstWindows::all : FirstWindows::some;
}

void ScalingState::set_updates_left(Group& group, int32_t updates) {
  const std::vector<int32_t> left(group.slots.size(), updates);
  copy_from_host(*device_, group.updates_left, left.data());
  for (ScalingSlot* slot : group.slots) {
    slot->scales_now = updates > 0;
  }
}

void ScalingState::end_first_windows() {
  for (const auto& group : groups_) {
    if (group->format.is_current_at_first()) {
      set_updates_left(*group, 0);
    }
  }
}

void ScalingState::copy_first_windows(Stream stream, bool back) const {
  if (first_windows() == FirstWindows::none) {
    return;
  }
  for (const auto& group : groups_) {
    if (!group->format.is_current_at_first()) {
      continue;
    }
    int64_t row = 0;
    for (const View& values : {group->amax, group->scale.view(), group->scale_inv.view()}) {
      const View stored = rows_of(group->unevaluated.view(), row++, 1);
      ops::cast(stream, back ? stored : values, back ? values : stored);  // fp32: the same bits
    }
  }
}

void ScalingState::begin_evaluation(Stream stream) {
  read_windows();
  copy_first_windows(stream, false);
}

void ScalingState::end_evaluation(Stream stream) const {
  copy_first_windows(stream, true);
}

}  // namespace fp8train
