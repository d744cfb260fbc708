#pragma once
// The allocations of the stand-in runtime: memory of the host, each with a page behind it that
// cannot be touched. It is zero at first, since kernels, which would write it, compute nothing.
// Not synchronized; Call (state.h) holds the mutex.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace fp8train::standin {

enum class MemoryKind { device, pinned };

class Memory {
 public:
  /// Null where the GPU, or the host, has no more.
  void* allocate(MemoryKind kind, size_t bytes);
  /// False where `pointer` is not the begin of a live allocation of this kind.
  bool release(MemoryKind kind, void* pointer);

  /// Whether all of the range lies in one live allocation of this kind.
  bool holds(MemoryKind kind, const void* pointer, size_t bytes) const;
  size_t used_on_device() const { return used_; }
  size_t allocations() const { return blocks_.size(); }
  /// What `pointer` is, in words, for messages.
  std::string description(const void* pointer) const;

 private:
  struct Block {
    MemoryKind kind;
    size_t bytes;
  };
  std::map<uintptr_t, Block> blocks_;  ///< by address
  std::map<uintptr_t, size_t> freed_;  ///< for messages
  size_t used_ = 0;
};

}  // namespace fp8train::standin
