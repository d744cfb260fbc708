#pragma once
// The memory of a step: stack-shaped. A plan is made by running one step on the meta device, where
// an Arena grows freely and remembers its high-water mark; on a real device it is reserved once to
// that mark and then only moves an offset. Views into an arena are valid until release() to an
// earlier mark. Only the host keeps the books: memory may be given out again while the work on it
// is still in the stream, which runs in order.

#include <algorithm>
#include <cstddef>

#include "device/device.h"

namespace fp8train {

/// Memory from which views are allocated like on a stack.
class Arena {
 public:
  using Mark = size_t;

  Arena(Device& device, MemoryCategory category) : device_(&device), category_(category) {}

  /// Sets the capacity. Throws InternalError if anything is allocated from the arena, DeviceError
  /// if there is no memory.
  void reserve(size_t bytes);

  /// Allocates 256-byte aligned memory. Throws InternalError when the plan is exceeded (never on
  /// meta).
  void* allocate(size_t bytes);
  /// Whether allocate() can give that many bytes (more than 0), for callers that have other memory.
  bool has(size_t bytes) const;

  /// Returns the first byte; null until reserve().
  void* base() const { return buffer_.data(); }
  Mark mark() const { return used_; }
  void release(Mark mark) { used_ = mark; }
  size_t high_water() const { return high_water_; }

 private:
  Device* device_;
  Buffer buffer_;
  MemoryCategory category_;
  size_t used_ = 0;
  size_t high_water_ = 0;
};

/// Releases the memory that was allocated in its lifetime.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace fp8train
