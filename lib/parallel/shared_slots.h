#pragma once
// Memory that the units of a model use alternately: the slots of a unit are free again for the next
// unit. A slot is reused only for a request of exactly its size, so equal blocks share all of it.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <list>
#include <map>
#include <set>

#include "device/device.h"
#include "tensor/view.h"

namespace fp8train {

/// Memory that the units of a group use one after another.
class SharedSlots {
 public:
  /// Returns uninitialized memory for `unit` from a group of slots, 256-byte aligned, as long as
  /// this object lives. Slots are charged to `category`, and only requests of one category share
  /// them. Throws DeviceError if there is no memory.
  View take(Device& device, size_t group, size_t unit, MemoryCategory category, DType dtype,
            const Shape& shape) {
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

 private:
  struct Slot {
    Buffer memory;
    std::set<size_t> units;  ///< units that have taken this slot
  };
  struct Key {
    size_t group;
    MemoryCategory category;
    size_t bytes;

    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::list<Slot>> slots_;
};

}  // namespace fp8train
