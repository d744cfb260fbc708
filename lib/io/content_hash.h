#pragma once
// A fast hash of bytes (XXH3, 64 bits), for comparing contents and not against an adversary.

#include <cstddef>
#include <cstdint>

namespace fp8train {

/// The hash of `bytes` bytes of `data`, continued from `before`.
uint64_t content_hash(const void* data, size_t bytes, uint64_t before = 0);

}  // namespace fp8train
