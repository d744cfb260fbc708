#include "base/flight_recorder.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr std::array<const char*, kSections> kNames = {
    "none", "start_up", "data", "step", "exchange", "evaluation", "sample", "save", "end"};

thread_local FlightRecorder* recorder_of_thread = nullptr;
std::atomic<FlightRecorder::Observer> section_observer = nullptr;

uint64_t monotonic_time() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
}

uint64_t nanoseconds(double seconds) {
  constexpr double kMost = 1e9;  // seconds; more would not fit
  return static_cast<uint64_t>((seconds < kMost ? seconds : kMost) * 1e9);
}

void observe(Section section, uint64_t step) {
  if (const FlightRecorder::Observer observer = section_observer) {
    observer(section, static_cast<int64_t>(step));
  }
}

}  // namespace

const char* name_of(Section section) {
  return kNames.at(static_cast<size_t>(section));
}

Section FlightState::where() const {
  return waiting != 0 && section == Section::step ? Section::exchange : section;
}

double FlightState::seconds() const {
  const uint64_t since = waiting != 0 ? waiting_since : section_begun;
  const uint64_t time = monotonic_time();
  return time < since ? 0.0 : static_cast<double>(time - since) * 1e-9;
}

const FlightOperation* FlightState::waits_for() const {
  return waiting == 0 || operations - (waiting - 1) > kOperations
             ? nullptr
             : &ring[(waiting - 1) % kOperations];
}

FlightRecorder::FlightRecorder() : timed_until_(monotonic_time()) {
  state_.section_begun = timed_until_;
}

FlightState FlightRecorder::read() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

void FlightRecorder::add_time_to(Section section) {
  const uint64_t time = monotonic_time();
  seconds_[static_cast<size_t>(section)] += static_cast<double>(time - timed_until_) * 1e-9;
  timed_until_ = time;
}

void FlightRecorder::begin_section(uint64_t time) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++state_.changes;
  state_.section = section_;
  state_.section_begun = time;
  state_.waiting = 0;
  state_.limit = nanoseconds(limit(section_));
}

void FlightRecorder::begin_step(int64_t step) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_.step = static_cast<uint64_t>(step);
  }
  advance();
  observe(Section::step, state_.step);
}

void FlightRecorder::change_section(Section section) {
  add_time_to(section_);
  section_ = section;
  begin_section(timed_until_);
}

Section FlightRecorder::enter(Section section) {
  const Section before = section_;
  change_section(section);
  if (section != Section::step) {  // its beginning is begin_step()
    observe(section, state_.step);
  }
  return before;
}

void FlightRecorder::go_back(Section before) {
  change_section(before);
}

void FlightRecorder::advance() {
  add_time_to(section_);
  begin_section(timed_until_);
}

uint64_t FlightRecorder::begin_operation(const char* name, uint64_t communicator, uint64_t sequence,
                                         uint64_t bytes) {
  FlightOperation operation = {.communicator = communicator,
                               .sequence = sequence,
                               .bytes = bytes,
                               .step = state_.step,
                               .begun = monotonic_time()};
  std::strncpy(operation.name.data(), name, operation.name.size() - 1);
  const std::lock_guard<std::mutex> lock(mutex_);
  slot(state_.operations) = operation;
  return state_.operations++;
}

void FlightRecorder::begin_wait(uint64_t operation, double limit) {
  add_time_to(section_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++state_.changes;
    state_.waiting_since = timed_until_;
    state_.waiting = operation + 1;
    state_.limit = nanoseconds(limit);
  }
  if (section_ == Section::step) {
    observe(Section::exchange, state_.step);
  }
}

void FlightRecorder::end_operation(uint64_t operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_.operations - operation <= FlightState::kOperations) {
    slot(operation).ended = monotonic_time();
  }
}

void FlightRecorder::end_wait() {
  add_time_to(Section::exchange);
  begin_section(timed_until_);
}

SectionSeconds FlightRecorder::take_seconds() {
  add_time_to(section_);
  const SectionSeconds taken = seconds_;
  seconds_ = {};
  return taken;
}

void FlightRecorder::set_observer(Observer observer) {
  section_observer = observer;
}

void record_flight(FlightRecorder* recorder) {
  recorder_of_thread = recorder;
}

FlightRecorder* flight_recorder() {
  return recorder_of_thread;
}

}  // namespace fp8train
