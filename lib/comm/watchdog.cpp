#include "comm/watchdog.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(20);  // a look costs some microseconds
constexpr double kLongestGap = 1;  // seconds between looks, of a process that could run

}  // namespace

Watchdog::Watchdog(std::function<std::string()> failure, std::function<void()> give_up)
    : failure_(std::move(failure)),
      give_up_(std::move(give_up)),
      running_(kLongestGap),
      thread_([this] { work(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    woken_.notify_all();
  }
  thread_.join();
}

void Watchdog::watch(Operation operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double limit = running_.seconds() + operation.timeout;
  under_way_.push_back({std::move(operation), limit});
}

void Watchdog::fail(const std::string& why, Cause cause) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!why_.empty()) {
      return;
    }
    why_ = why;
    cause_ = cause;
  }
  give_up_();
}

bool Watchdog::failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !why_.empty();
}

void Watchdog::check(const std::string& what) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (why_.empty()) {
    return;
  }
  const std::string text = fmt::format("{}: the communicator has been given up: {}", what, why_);
  if (cause_ == Cause::timeout) {
    throw TimeoutError(text);
  }
  throw CommError(text);
}

Watchdog::Finding Watchdog::look() {
  std::list<Watched> looked_at;
  double time = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    looked_at.swap(under_way_);
    time = running_.seconds();
  }
  Finding finding = {.wrong = failure_()};
  std::string& wrong = finding.wrong;
  // On one stream the operations end in their order.
  while (wrong.empty() && !looked_at.empty() && looked_at.front().operation.end->reached()) {
    looked_at.pop_front();
  }
  if (!looked_at.empty()) {
    const Operation& first = looked_at.front().operation;
    if (!wrong.empty()) {
      wrong = fmt::format("{}: {}", first.what, wrong);
    } else if (time > looked_at.front().limit) {
      wrong = fmt::format(
          "{} did not end in {} s; a rank has not started it, or the network does not answer",
          first.what, first.timeout);
      finding.cause = Cause::timeout;
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  under_way_.splice(under_way_.begin(), looked_at);
  return finding;
}

void Watchdog::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!woken_.wait_for(lock, kLookInterval, [this] { return stop_ || !why_.empty(); })) {
    lock.unlock();
    Finding found;
    try {
      found = look();
    } catch (const std::exception& error) {  // the GPU's own failure
      found.wrong = error.what();
    }
    if (!found.wrong.empty()) {
      fail(found.wrong, found.cause);
    }
    lock.lock();
  }
}

}  // namespace fp8train
