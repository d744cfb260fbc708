// A program with defects, which the stand-in runtime reports when it ends.

#include <cuda_runtime_api.h>

int main() {
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaMalloc(&memory, 64);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaFree(&event);
}
