#pragma once
// What the files of the shim's runtime share: its streams and events, and the error that a thread
// keeps until it asks for it.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_runtime_api.h"
#include "submit.h"

using Work = std::vector<std::function<void()>>;
using LateWorks = std::vector<std::shared_ptr<fp8train::shim::LateWork>>;
/// How much of each stream's work is known to come before.
using Seen = std::map<const CUstream_st*, unsigned long>;

/// The events of a stream are reached in the order of recording: how many the host knows of.
using Progress = std::shared_ptr<unsigned long>;
/// Events that come before, by the stream that they were recorded in.
using Order = std::map<Progress, unsigned long>;

struct CUstream_st {
  std::thread::id owner;
  LateWorks late;
  Seen seen;  ///< its own entry: work that it was given
  Progress progress = std::make_shared<unsigned long>(0);
  Order order = {{progress, 0}};  ///< its own entry: events that were recorded
};
struct CUevent_st {
  double clock = 0;
  LateWorks late;
  Seen seen;
  Progress progress;  ///< of the stream in which it was recorded; null before
  Order order;        ///< its own entry: its number
};

namespace fp8train::shim {

/// Of what streams and events hold: other threads ask for events.
std::mutex& streams_mutex();

RuntimeCalls& counted_calls();  ///< of the calling thread
long live_events();
double clock_now();  ///< milliseconds that fakes have let pass on this thread

/// Keeps a failure as the thread's last error, as every function of the runtime does. A success
/// leaves it.
cudaError_t report(cudaError_t status);

/// What the runtime function answers where a test has asked for its failure (fail_next).
cudaError_t asked_failure(const char* function);

/// The host has come to know that these are reached. streams_mutex() is held.
void mark_reached(const Order& order);

bool all_over(const LateWorks& late);
void wait_for(const LateWorks& late);

/// Draws of the calling thread begin anew: with its first stream, so that tests repeat.
void restart_late_events();

}  // namespace fp8train::shim
