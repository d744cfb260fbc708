// What the fakes of cuBLASLt and NCCL (tests/support/cuda_shim) ask of a runtime. Products are
// computed until the first kernel is launched: so far memory holds what the host has copied there,
// and the products that show which scale modes a GPU has are right. Later its contents mean
// nothing.

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "../cuda_shim/submit.h"
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

void submit_late(cudaStream_t stream, std::shared_ptr<LateWork> work) {
  standin::Call call("a collective of NCCL");
  if (call.check(stream) != cudaSuccess || call.refuse_while_recording() != cudaSuccess) {
    std::abort();  // the fake has no answer for it
  }
  stream->busy_until = call->timeline.add_late(stream->busy_until,
                                               [work = std::move(work)] { return work->over(); });
}

/// Nobody asks for the work before its turn has come.
std::vector<std::shared_ptr<LateWork>> unfinished(cudaStream_t /*stream*/) {
  return {};
}

bool follows_all(cudaStream_t stream) {
  const standin::Call call("ncclGroupEnd");
  return std::all_of(call->streams.begin(), call->streams.end(), [&](const CUstream_st* other) {
    return other->busy_until <= stream->busy_until;
  });
}

/// The timeline draws how long work takes.
void advance_clock(float /*milliseconds*/) {}

}  // namespace fp8train::shim
