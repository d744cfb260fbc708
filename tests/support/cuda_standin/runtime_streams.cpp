// Streams, events and graphs.

#include <algorithm>

#include "state.h"

using fp8train::standin::Call;
using fp8train::standin::recorded_graph;

namespace {

template <typename T>
void destroy(fp8train::standin::Live<T>& live, T* handle) {
  live.erase(handle);
  delete handle;
}

/// Whether the event belongs to a recording: the host cannot ask for it.
cudaError_t check_outside(Call& call, cudaEvent_t event) {
  if (const cudaError_t error = call.check(event)) {
    return error;
  }
  if (const cudaError_t error = call.refuse_while_recording()) {
    return error;
  }
  return event->captured ? call.refuse(cudaErrorCapturedEvent, "an event of a recording")
                         : cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  Call call(__func__);
  if (flags != cudaStreamNonBlocking) {
    return call.refuse(cudaErrorInvalidValue, "a stream that waits for the null stream");
  }
  *stream = *call->streams.insert(new CUstream_st).first;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call call(__func__);
  if (const cudaError_t error = call.check(stream)) {
    return error;
  }
  if (stream->graph != nullptr) {
    return call.refuse(cudaErrorStreamCaptureUnsupported, "a stream that is captured");
  }
  destroy(call->streams, stream);  // its work goes on
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Call call(__func__);
  if (const cudaError_t error = call.check(stream)) {
    return error;
  }
  if (const cudaError_t error = call.refuse_while_recording()) {
    return error;
  }
  call->counts.waits += stream->busy_until > call->timeline.now() ? 1 : 0;
  call.wait_until(stream->busy_until);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  Call call(__func__);
  if (const cudaError_t error = call.check(stream)) {
    return error;
  }
  if (const cudaError_t error = call.check(event)) {
    return error;
  }
  if (event->captured != (stream->graph != nullptr)) {
    return call.refuse(cudaErrorStreamCaptureIsolation, "one of stream and event is recorded");
  }
  if (event->recorded && !event->captured) {
    stream->busy_until = std::max(stream->busy_until, event->time);
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Call call(__func__);
  *event = *call->events.insert(new CUevent_st).first;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Call call(__func__);
  if (const cudaError_t error = call.check(event)) {
    return error;
  }
  destroy(call->events, event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Call call(__func__);
  if (const cudaError_t error = call.check(event)) {
    return error;
  }
  if (const cudaError_t error = call.submit(stream, {})) {
    return error;
  }
  event->recorded = true;
  event->captured = stream->graph != nullptr;
  event->time = stream->busy_until;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Call call(__func__);
  if (const cudaError_t error = check_outside(call, event)) {
    return error;
  }
  const bool ready = event->time <= call->timeline.now();
  call->counts.queries += 1;
  call->counts.not_ready += ready ? 0 : 1;
  return ready ? cudaSuccess : call.fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call call(__func__);
  if (const cudaError_t error = check_outside(call, event)) {
    return error;
  }
  call->counts.waits += event->time > call->timeline.now() ? 1 : 0;
  call.wait_until(event->time);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  Call call(__func__);
  for (cudaEvent_t event : {from, to}) {
    if (const cudaError_t error = check_outside(call, event)) {
      return error;
    }
    if (!event->timed || !event->recorded) {
      return call.refuse(cudaErrorInvalidResourceHandle, "an event that takes no time");
    }
    if (event->time > call->timeline.now()) {
      return call.fail(cudaErrorNotReady);
    }
  }
  *milliseconds = (static_cast<float>(to->time) - static_cast<float>(from->time)) / 1000;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Call call(__func__);
  if (const cudaError_t error = call.check(stream)) {
    return error;
  }
  if (recorded_graph() != nullptr || stream->graph != nullptr) {
    return call.refuse(cudaErrorIllegalState, "a recording within another");
  }
  if (mode != cudaStreamCaptureModeThreadLocal) {
    return call.refuse(cudaErrorInvalidValue, "a recording that other threads would break");
  }
  recorded_graph() = stream->graph = *call->graphs.insert(new CUgraph_st).first;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Call call(__func__);
  *graph = nullptr;
  if (const cudaError_t error = call.check(stream)) {
    return error;
  }
  if (stream->graph == nullptr || stream->graph != recorded_graph()) {
    return call.refuse(cudaErrorIllegalState, "a stream that this thread does not record");
  }
  CUgraph_st* const recorded = std::exchange(stream->graph, nullptr);
  recorded_graph() = nullptr;
  if (recorded->broken) {
    destroy(call->graphs, recorded);
    return call.fail(cudaErrorStreamCaptureInvalidated);
  }
  *graph = recorded;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  Call call(__func__);
  if (call->graphs.count(graph) == 0) {
    return call.refuse(cudaErrorInvalidValue, "a graph that is not alive");
  }
  *executable = *call->executables.insert(new CUgraphExec_st{graph->nodes}).first;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Call call(__func__);
  if (call->executables.count(executable) == 0) {
    return call.refuse(cudaErrorInvalidValue, "an executable graph that is not alive");
  }
  if (const cudaError_t error = call.refuse_while_recording()) {
    return error;
  }
  call->counts.graph_launches += 1;
  for (const auto& node : executable->nodes) {
    if (const cudaError_t error = call.submit(stream, node)) {
      return error;
    }
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Call call(__func__);
  if (call->graphs.count(graph) == 0) {
    return call.refuse(cudaErrorInvalidValue, "a graph that is not alive");
  }
  destroy(call->graphs, graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Call call(__func__);
  if (call->executables.count(executable) == 0) {
    return call.refuse(cudaErrorInvalidValue, "an executable graph that is not alive");
  }
  destroy(call->executables, executable);
  return cudaSuccess;
}
}
