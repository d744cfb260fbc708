#include "comm/watchdog.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(20);  // a look costs some microseconds

}  // namespace

Watchdog::Watchdog(std::function<std::string()> failure, std::function<void()> give_up)
    : failure_(std::move(failure)), give_up_(std::move(give_up)), thread_([this] { work(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    woken_.notify_all();
  }
  thread_.join();
}

void Watchdog::watch(Operation operation) {
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(operation.timeout));
  const std::lock_guard<std::mutex> lock(mutex_);
  under_way_.push_back({std::move(operation), limit});
}

void Watchdog::fail(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!why_.empty()) {
      return;
    }
    why_ = why;
  }
  give_up_();
}

bool Watchdog::failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !why_.empty();
}

void Watchdog::check(const std::string& what) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!why_.empty()) {
    throw CommError(fmt::format("{}: the communicator has been given up: {}", what, why_));
  }
}

/// What is wrong; empty: nothing.
std::string Watchdog::look() {
  std::list<Watched> looked_at;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    looked_at.swap(under_way_);
  }
  std::string wrong = failure_();
  // On one stream the operations end in their order.
  while (wrong.empty() && !looked_at.empty() && looked_at.front().operation.end->reached()) {
    looked_at.pop_front();
  }
  if (!looked_at.empty()) {
    const Operation& first = looked_at.front().operation;
    if (!wrong.empty()) {
      wrong = fmt::format("{}: {}", first.what, wrong);
    } else if (Clock::now() > looked_at.front().limit) {
      wrong = fmt::format(
          "{} did not end in {} s; a rank has not started it, or the network does not answer",
          first.what, first.timeout);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  under_way_.splice(under_way_.begin(), looked_at);
  return wrong;
}

void Watchdog::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!woken_.wait_for(lock, kLookInterval, [this] { return stop_ || !why_.empty(); })) {
    lock.unlock();
    std::string wrong;
    try {
      wrong = look();
    } catch (const std::exception& error) {  // the GPU's own failure
      wrong = error.what();
    }
    if (!wrong.empty()) {
      fail(wrong);
    }
    lock.lock();
  }
}

}  // namespace fp8train
