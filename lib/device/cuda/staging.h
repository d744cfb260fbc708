#pragma once
// Copies from host memory that may change right after the call. They go through a ring of pinned
// buffers, so that the copy itself is asynchronous. The host waits only when the GPU is a whole
// ring (16 MiB) behind. Owns the buffers; one thread uses it.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "base/not_copied.h"

namespace fp8train {

class PinnedStaging : NotCopied {
 public:
  ~PinnedStaging();

  /// Copies `bytes` bytes to device memory, in the order of `stream`. Each buffer is allocated when
  /// it is first used. Throws DeviceError.
  void copy_to_device(void* to, const void* from, size_t bytes, cudaStream_t stream);

 private:
  static constexpr size_t kSlots = 16;
  static constexpr size_t kSlotBytes = size_t{1} << 20;
  struct Slot {
    void* memory = nullptr;
    cudaEvent_t copied = nullptr;
  };

  std::array<Slot, kSlots> slots_;
  size_t next_ = 0;
};

}  // namespace fp8train
