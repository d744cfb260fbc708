#include "memory.h"

#include <sys/mman.h>

#include <iterator>

#include "gpu.h"

namespace fp8train::standin {
namespace {

constexpr size_t kPage = 4096;

/// Of an allocation with the page behind it.
size_t mapped(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage + kPage;
}

}  // namespace

void* Memory::allocate(MemoryKind kind, size_t bytes) {
  if (kind == MemoryKind::device && bytes > gpu().memory - used_) {
    return nullptr;
  }
  void* const pointer = mmap(nullptr, mapped(bytes), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pointer == MAP_FAILED) {
    return nullptr;
  }
  mprotect(static_cast<char*>(pointer) + mapped(bytes) - kPage, kPage, PROT_NONE);
  blocks_[reinterpret_cast<uintptr_t>(pointer)] = {kind, bytes};
  freed_.erase(reinterpret_cast<uintptr_t>(pointer));
  used_ += kind == MemoryKind::device ? bytes : 0;
  return pointer;
}

bool Memory::release(MemoryKind kind, void* pointer) {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == blocks_.end() || found->second.kind != kind) {
    return false;
  }
  used_ -= kind == MemoryKind::device ? found->second.bytes : 0;
  munmap(pointer, mapped(found->second.bytes));
  freed_[found->first] = found->second.bytes;
  blocks_.erase(found);
  return true;
}

bool Memory::holds(MemoryKind kind, const void* pointer, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) {
    return false;
  }
  const auto& [begin, block] = *--after;
  return block.kind == kind && address - begin <= block.bytes &&
         bytes <= block.bytes - (address - begin);
}

std::string Memory::description(const void* pointer) const {
  if (holds(MemoryKind::device, pointer, 0)) {
    return "memory of the GPU, or a range that ends behind it";
  }
  if (holds(MemoryKind::pinned, pointer, 0)) {
    return "pinned memory";
  }
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto after = freed_.upper_bound(address);
  if (after != freed_.begin() && address - std::prev(after)->first < std::prev(after)->second) {
    return "memory that was freed";
  }
  return "memory that the runtime did not allocate";
}

}  // namespace fp8train::standin
