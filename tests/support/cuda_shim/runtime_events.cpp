// Events and last errors of the shim's runtime.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "runtime_state.h"

using namespace fp8train::shim;

namespace {

thread_local RuntimeCalls calls;
thread_local double clock_milliseconds = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::pair<std::string, cudaError_t> failing;
thread_local bool late_events = true;
thread_local uint64_t draws = 0;
std::atomic<long> events = 0;

/// True half of the time; the sequence is the same after each restart.
bool late_at_random() {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  uint64_t bits = ++draws * kOdd;
  bits = (bits ^ (bits >> 29)) * kOdd;
  return late_events && (bits >> 63) != 0;
}

template <typename Key>
void merge(std::map<Key, unsigned long>& into, const std::map<Key, unsigned long>& more) {
  for (const auto& [key, count] : more) {
    into[key] = std::max(into[key], count);
  }
}

/// Whether the work before the event is over and the host may know it.
bool reached(cudaEvent_t event) {
  LateWorks late;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex());
    late = event->late;
  }
  if (!all_over(late)) {  // without the mutex: it may do the work
    return false;
  }
  const std::lock_guard<std::mutex> lock(streams_mutex());
  if (event->progress == nullptr || event->order.at(event->progress) <= *event->progress) {
    return true;
  }
  if (late_at_random()) {
    return false;
  }
  mark_reached(event->order);
  return true;
}

}  // namespace

namespace fp8train::shim {

std::mutex& streams_mutex() {
  static std::mutex mutex;
  return mutex;
}
RuntimeCalls& counted_calls() {
  return calls;
}
const RuntimeCalls& runtime_calls() {
  return calls;
}
double clock_now() {
  return clock_milliseconds;
}
void advance_clock(float milliseconds) {
  clock_milliseconds += milliseconds;
}
long live_events() {
  return events;
}

cudaError_t report(cudaError_t status) {
  if (status != cudaSuccess) {
    last_error = status;
  }
  return status;
}

void fail_next(const char* function, cudaError_t error) {
  failing = {function, error};
}

cudaError_t asked_failure(const char* function) {
  if (failing.first != function) {
    return cudaSuccess;
  }
  failing.first.clear();
  return report(failing.second);
}

void mark_reached(const Order& order) {
  for (const auto& [progress, number] : order) {
    *progress = std::max(*progress, number);
  }
}

bool all_over(const LateWorks& late) {
  return std::all_of(late.begin(), late.end(), [](const auto& work) { return work->over(); });
}

void wait_for(const LateWorks& late) {
  while (!all_over(late)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void set_late_events(bool late) {
  late_events = late;
}

void restart_late_events() {
  draws = 0;
}

}  // namespace fp8train::shim

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  if (const cudaError_t asked = asked_failure(__func__); asked != cudaSuccess) {
    return asked;
  }
  *event = new CUevent_st;
  events += 1;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  events -= 1;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event == nullptr) {
    return report(cudaErrorInvalidResourceHandle);
  }
  const std::lock_guard<std::mutex> lock(streams_mutex());
  event->clock = clock_milliseconds;
  event->late = stream == nullptr ? LateWorks() : stream->late;
  event->seen = stream == nullptr ? Seen() : stream->seen;
  if (stream != nullptr) {
    stream->order[stream->progress] += 1;
    event->progress = stream->progress;
    event->order = stream->order;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const std::lock_guard<std::mutex> lock(streams_mutex());
  for (const auto& work : event->late) {
    if (std::find(stream->late.begin(), stream->late.end(), work) == stream->late.end()) {
      stream->late.push_back(work);
    }
  }
  merge(stream->seen, event->seen);
  merge(stream->order, event->order);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) {
    return report(cudaErrorInvalidResourceHandle);
  }
  return reached(event) ? cudaSuccess : report(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (reached(event)) {
    return cudaSuccess;
  }
  calls.synchronizations += 1;  // it waits
  LateWorks late;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex());
    late = event->late;
  }
  wait_for(late);
  const std::lock_guard<std::mutex> lock(streams_mutex());
  mark_reached(event->order);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = static_cast<float>(to->clock - from->clock);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return "error of the host shim";
  }
}
const char* cudaGetErrorName(cudaError_t /*error*/) {
  return "shim";
}
}
