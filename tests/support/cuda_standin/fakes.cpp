// What the fake cuBLASLt (tests/support/cuda_shim) asks of a runtime, as declared in the shim's
// submit.h and cuda_runtime_api.h, which the real header excludes. Its products are computed until
// the first kernel is launched: so far memory holds what the host has copied there, and the
// products that show which scale modes a GPU has are right. Later its contents mean nothing.

#include <cstdlib>

#include "state.h"

namespace fp8train::shim {

void submit(cudaStream_t stream, std::function<void()> work) {
  standin::Call call("cublasLtMatmul");
  call->counts.products += 1;
  if (call.submit(stream, call->counts.launches == 0 ? work : standin::Work()) != cudaSuccess) {
    std::abort();  // the fake has no answer for it
  }
}

bool capturing() {
  return standin::recorded_graph() != nullptr;
}

/// The timeline draws how long work takes.
void advance_clock(float /*milliseconds*/) {}

}  // namespace fp8train::shim
