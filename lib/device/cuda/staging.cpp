#include "device/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/cuda_context.h"

namespace fp8train {

PinnedStaging::~PinnedStaging() {
  for (const Slot& slot : slots_) {
    if (slot.copied != nullptr) {
      cudaEventDestroy(slot.copied);
    }
    if (slot.memory != nullptr) {
      cudaFreeHost(slot.memory);
    }
  }
}

void PinnedStaging::copy_to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
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
    check_cuda(cudaMemcpyAsync(static_cast<char*>(to) + done, slot.memory, size, cudaMemcpyDefault,
                               stream),
               "copying to the GPU");
    check_cuda(cudaEventRecord(slot.copied, stream), "recording an event");
    done += size;
  }
}

}  // namespace fp8train
