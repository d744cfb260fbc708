#pragma once
// Copies from host memory that may change right after the call: through a ring of pinned buffers,
// so that the copy itself is asynchronous. The host waits only when the GPU is a whole ring behind.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace fp8train {

class PinnedStaging {
 public:
  PinnedStaging() = default;
  ~PinnedStaging();
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  /// Throws DeviceError. The ring is allocated by the first copy.
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
