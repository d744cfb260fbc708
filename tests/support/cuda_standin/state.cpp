#include "state.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "standin.h"

namespace fp8train::standin {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

uint64_t seed() {
  const char* const value = std::getenv("FP8TRAIN_STANDIN_SEED");
  return value == nullptr ? 1 : std::strtoull(value, nullptr, 10);
}

}  // namespace

State::State() : timeline(seed()) {}

State& state() {
  static State& only = *new State;
  return only;
}

std::vector<std::string> take_refusals() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return std::exchange(state().refusals, {});
}

CUgraph_st*& recorded_graph() {
  static thread_local CUgraph_st* graph = nullptr;
  return graph;
}

Call::Call(const char* function) : function_(function), state_(state()), lock_(state_.mutex) {
  state_.timeline.tick();
}

cudaError_t Call::fail(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t Call::refuse(cudaError_t error, const std::string& why) {
  state_.refusals.push_back(std::string(function_) + ": " + why);
  return fail(error);
}

cudaError_t Call::refuse_while_recording() {
  CUgraph_st* const graph = recorded_graph();
  if (graph == nullptr) {
    return cudaSuccess;
  }
  graph->broken = true;
  return refuse(cudaErrorStreamCaptureUnsupported, "called while a graph is recorded");
}

cudaError_t Call::check(cudaStream_t stream) {
  if (stream == nullptr && recorded_graph() != nullptr) {
    recorded_graph()->broken = true;
    return refuse(cudaErrorStreamCaptureImplicit, "the null stream while a graph is recorded");
  }
  if (stream == nullptr) {  // the library gives all its work to streams of its own
    return refuse(cudaErrorInvalidResourceHandle, "the null stream");
  }
  return state_.streams.count(stream) != 0
             ? cudaSuccess
             : refuse(cudaErrorInvalidResourceHandle, "a stream that is not alive");
}

cudaError_t Call::check(cudaEvent_t event) {
  return state_.events.count(event) != 0
             ? cudaSuccess
             : refuse(cudaErrorInvalidResourceHandle, "an event that is not alive");
}

cudaError_t Call::submit(cudaStream_t stream, const Work& work) {
  if (const cudaError_t error = check(stream)) {
    return error;
  }
  if (stream->graph == nullptr) {
    stream->busy_until = state_.timeline.add(stream->busy_until, work);
    return cudaSuccess;
  }
  if (stream->graph->broken) {
    return fail(cudaErrorStreamCaptureInvalidated);
  }
  stream->graph->nodes.push_back(work);
  return cudaSuccess;
}

void Call::wait_until(uint64_t time) {
  while (!state_.timeline.advance_to(time)) {
    lock_.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock_.lock();
  }
}

}  // namespace fp8train::standin

using fp8train::standin::last_error;

extern "C" {

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
}
