// The first windows of delayed scales with current_at_first: which slots are in theirs, and passes
// that must leave them as they are.

#include "ops/pointwise/elementwise.h"
#include "precision/scaling_state.h"

namespace fp8train {
namespace {

void copy_values(Stream stream, ConstView from, const View& to) {
  ops::cast(stream, from, to);  // from fp32 to fp32: the same bits
}

}  // namespace

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

void ScalingState::begin_evaluation(Stream stream) {
  read_windows();
  if (first_windows() == FirstWindows::none) {
    return;
  }
  for (const auto& group : groups_) {
    if (group->format.is_current_at_first()) {
      const View rows = group->unevaluated.view();
      copy_values(stream, group->amax, rows_of(rows, 0, 1));
      copy_values(stream, group->scale, rows_of(rows, 1, 1));
      copy_values(stream, group->scale_inv, rows_of(rows, 2, 1));
    }
  }
}

void ScalingState::end_evaluation(Stream stream) const {
  if (first_windows() == FirstWindows::none) {
    return;
  }
  for (const auto& group : groups_) {
    if (group->format.is_current_at_first()) {
      const View rows = group->unevaluated.view();
      copy_values(stream, rows_of(rows, 0, 1), group->amax);
      copy_values(stream, rows_of(rows, 1, 1), group->scale);
      copy_values(stream, rows_of(rows, 2, 1), group->scale_inv);
    }
  }
}

}  // namespace fp8train
