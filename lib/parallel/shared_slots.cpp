#include "parallel/shared_slots.h"

#include <algorithm>

namespace fp8train {

View SharedSlots::take(Device& device, size_t group, size_t unit, MemoryCategory category,
                       DType dtype, const Shape& shape) {
  const View wanted = {nullptr, dtype, shape};
  std::list<Slot>& slots = slots_[{group, category, wanted.bytes()}];
  auto free = std::find_if(slots.begin(), slots.end(),
                           [unit](const Slot& slot) { return !slot.units.contains(unit); });
  if (free == slots.end()) {
    slots.push_back({Buffer(device, wanted.bytes(), category), {}});
    free = std::prev(slots.end());
  }
  free->units.insert(unit);
  return {free->memory.data(), dtype, shape};
}

}  // namespace fp8train
