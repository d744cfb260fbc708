#pragma once
// Work that is given to the shim's streams: done at once, or, while the stream is captured, stored
// in the graph. What `work` needs is copied into it, as a launch copies its arguments. What a fake
// library does together with other ranks is done as late as it may be: when something waits for it.
// So what forgets to wait reads what has not come.

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <vector>

namespace fp8train::shim {

void submit(cudaStream_t stream, std::function<void()> work);

/// Whether work is being recorded in a graph: what device memory holds at that time means nothing.
bool capturing();

/// Work that ends when other ranks have done their part.
class LateWork {
 public:
  virtual ~LateWork() = default;
  /// Does it, if that can be. Any thread may ask, and hold a lock of the runtime.
  virtual bool over() = 0;
};

/// What is submitted to the stream later waits for it, which blocks the calling thread. `work`
/// waits for what is unfinished in the stream.
void submit_late(cudaStream_t stream, std::shared_ptr<LateWork> work);

/// What is ahead in the stream.
std::vector<std::shared_ptr<LateWork>> unfinished(cudaStream_t stream);

/// Whether the stream waits for all that this thread has given to its other streams.
bool follows_all(cudaStream_t stream);

}  // namespace fp8train::shim
