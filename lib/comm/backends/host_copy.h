#pragma once
// Copies that communicators make themselves, in host memory only.

#include <cstddef>
#include <cstring>
#include <string>

#include "base/error.h"
#include "device/stream.h"

namespace fp8train {

/// Whether the pointers of an operation point to memory, which they do not on meta. Throws
/// CommError for memory of a GPU.
inline bool moves_bytes(const Stream& stream, const char* kind, const char* operation) {
  if (stream.kind() == DeviceKind::cuda) {
    throw CommError(std::string(operation) + ": the " + kind +
                    " communicator moves host memory, and this is a GPU's; wrap it with "
                    "make_staged_communicator");
  }
  return stream.kind() == DeviceKind::cpu;
}

/// Copies bytes, unless both are the same memory.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

/// Returns the address `bytes` bytes after `base`.
inline void* offset_bytes(void* base, size_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}
inline const void* offset_bytes(const void* base, size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}

}  // namespace fp8train
