#include "device/cuda/cuda_event.h"

#include "device/cuda/cuda_context.h"

namespace fp8train {
namespace {

class CudaEvent final : public StreamEvent {
 public:
  CudaEvent() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(const Stream& stream) override {
    check_cuda(cudaEventRecord(event_, cuda_context(stream).stream), "recording an event");
  }
  void hold(const Stream& stream) override {
    check_cuda(cudaStreamWaitEvent(cuda_context(stream).stream, event_, 0),
               "making a stream wait for an event");
  }
  bool reached() override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // an answer, not a failure: the next check of the thread must not see it
      return false;
    }
    check_cuda(state, "work of a stream");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::unique_ptr<StreamEvent> make_cuda_event() {
  return std::make_unique<CudaEvent>();
}

}  // namespace fp8train
