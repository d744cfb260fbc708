#include "nn/shared_slots.h"

#include <algorithm>

namespace fp8train {

View SharedSlots::take(Device& device, size_t turn, size_t unit, MemoryCategory category,
                       DType dtype, const Shape& shape) {
  const View wanted = {nullptr, dtype, shape};
  std::list<Location>& places = places_[{turn, category, wanted.bytes()}];
  auto free = std::find_if(places.begin(), places.end(),
                           [unit](const Location& place) { return !place.units.contains(unit); });
  if (free == places.end()) {
    places.push_back({Buffer(device, wanted.bytes(), category), {}});
    free = std::prev(places.end());
  }
  free->units.insert(unit);
  return {free->memory.data(), dtype, shape};
}

}  // namespace fp8train
