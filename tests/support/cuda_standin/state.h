#pragma once
// What the stand-in runtime knows of: live handles, recordings, kernels, and what it refused. One
// mutex guards all of it; a Call holds it.

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "timeline.h"

/// Work that a stream is given while it is captured.
struct CUgraph_st {
  std::vector<fp8train::standin::Work> nodes;
  bool broken = false;  ///< by a call that no graph may hold
};
struct CUgraphExec_st {
  std::vector<fp8train::standin::Work> nodes;
};
struct CUstream_st {
  uint64_t busy_until = 0;
  CUgraph_st* graph = nullptr;  ///< while it is captured
};
struct CUevent_st {
  bool timed = false;
  bool recorded = false;
  bool captured = false;  ///< recorded in a stream that was captured
  uint64_t time = 0;
};

namespace fp8train::standin {

struct Kernel {
  std::string name;  ///< mangled
  size_t dynamic_shared = size_t{48} << 10;
  uint64_t launches = 0;
};

/// Live handles of one kind.
template <typename T>
using Live = std::set<T*>;

struct Counts {
  uint64_t launches = 0;  ///< of kernels; those of graphs count once
  uint64_t graph_launches = 0;
  uint64_t products = 0;   ///< of cuBLASLt, those of graphs included
  uint64_t copies = 0;     ///< and fills
  uint64_t queries = 0;    ///< of events
  uint64_t not_ready = 0;  ///< answers among them
  uint64_t waits = 0;      ///< for a stream or an event that was not ready
};

struct State {
  std::mutex mutex;
  Timeline timeline;
  Memory memory;
  Counts counts;
  Live<CUstream_st> streams;
  Live<CUevent_st> events;
  Live<CUgraph_st> graphs;
  Live<CUgraphExec_st> executables;
  std::map<const void*, Kernel> kernels;  ///< by the host's function
  std::vector<std::string> refusals;

  State();
};

/// Never destroyed: handles may be used until the program ends.
State& state();

/// One call of the runtime by the host: holds the mutex and takes time.
class Call {
 public:
  explicit Call(const char* function);

  /// A failure that a correct program may meet; it becomes the thread's last error.
  cudaError_t fail(cudaError_t error);
  /// A failure that only a defective program meets: it is reported at the end, too.
  cudaError_t refuse(cudaError_t error, const std::string& why);
  /// Refuses where the thread records a graph, which is then lost.
  cudaError_t refuse_while_recording();

  /// Does the work in the stream, or keeps it in the graph that is recorded.
  cudaError_t submit(cudaStream_t stream, const Work& work);
  /// Lets time pass. Other threads go on while it stands still.
  void wait_until(uint64_t time);
  /// Whether the stream is alive, else what the call answers.
  cudaError_t check(cudaStream_t stream);
  cudaError_t check(cudaEvent_t event);

  State* operator->() const { return &state_; }

 private:
  const char* function_;
  State& state_;
  std::unique_lock<std::mutex> lock_;
};

/// The graph that this thread records; null when it records none.
CUgraph_st*& recorded_graph();

}  // namespace fp8train::standin
