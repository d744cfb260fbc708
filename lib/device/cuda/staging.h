#pragma once
// Copies from host memory that may change right after the call. They go through a ring of pinned
// buffers, so that the copy itself is asynchronous. The host waits only when the GPU is a whole
// ring (16 MiB) behind. Owns the buffers; one thread uses it.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/not_copied.h"
#include "device/cuda/cuda_context.h"

namespace fp8train {

class PinnedStaging : NotCopied {
 public:
  ~PinnedStaging() {
    for (const Slot& slot : slots_) {
      if (slot.copied != nullptr) {
        cudaEventDestroy(slot.copied);
      }
      if (slot.memory != nullptr) {
        cudaFreeHost(slot.memory);
      }
    }
  }

  /// Copies `bytes` bytes to device memory, in the order of `stream`. Each buffer is allocated when
  /// it is first used. Throws DeviceError.
  void copy_to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    for (size_t done = 0; done < bytes;) {
      Slot& slot = slots_[next_++ % kSlots];
      if (slot.copied == nullptr) {
        check_cuda(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming),
                   "creating an event");
      }
      if (slot.memory == nullptr) {
        check_cuda(cudaMallocHost(&slot.memory, kSlotBytes), "allocating pinned memory");
      }
      // This returns at once if the event was never recorded. cudaEventQuery would leave
      // cudaErrorNotReady as the thread's last error.
      check_cuda(cudaEventSynchronize(slot.copied), "waiting for a copy to the GPU");
      const size_t size = std::min(kSlotBytes, bytes - done);
      std::memcpy(slot.memory, static_cast<const char*>(from) + done, size);
      check_cuda(cudaMemcpyAsync(static_cast<char*>(to) + done, slot.memory, size,
                                 cudaMemcpyDefault, stream),
                 "copying to the GPU");
      check_cuda(cudaEventRecord(slot.copied, stream), "recording an event");
      done += size;
    }
  }

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
