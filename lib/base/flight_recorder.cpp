#include "base/flight_recorder.h"

#include <sys/prctl.h>
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr uint64_t kMagic = 0x3130'7468'6769'6c66;  // "flight01"
constexpr std::array<const char*, kSections> kNames = {
    "none", "start_up", "data", "step", "exchange", "evaluation", "sample", "save", "end"};

static_assert(std::is_trivially_copyable_v<FlightState>);
static_assert(sizeof(FlightState) % sizeof(uint64_t) == 0);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

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

void set(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
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

std::string FlightOperation::name() const {
  std::array<char, sizeof(name_words)> text = {};
  std::memcpy(text.data(), name_words.data(), text.size());
  text.back() = 0;
  return text.data();
}

Section FlightState::where() const {
  const Section named = section < kSections ? static_cast<Section>(section) : Section::none;
  return waiting != 0 && named == Section::step ? Section::exchange : named;
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
  state_.magic = kMagic;
  state_.section_begun = timed_until_;
#ifdef PR_SET_PTRACER
  // Other ranks of this machine may read the recorder while this rank is stopped.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
}

FlightState FlightRecorder::read() const {
  constexpr int kTries = 8;
  FlightState copy;
  auto* const from = reinterpret_cast<uint64_t*>(&state_);
  auto* const to = reinterpret_cast<uint64_t*>(&copy);
  const std::atomic_ref<uint64_t> changes(state_.changes);
  for (int tries = 0; tries < kTries; ++tries) {
    for (size_t word = 0; word < sizeof(FlightState) / sizeof(uint64_t); ++word) {
      to[word] = std::atomic_ref<uint64_t>(from[word]).load(std::memory_order_acquire);
    }
    // `settled` was read after `changes`, and both before the words that follow them.
    if (copy.settled == copy.changes && changes.load(std::memory_order_acquire) == copy.changes) {
      return copy;
    }
  }
  copy.settled = copy.changes - 1;
  return copy;
}

void FlightRecorder::add_time_to(Section section) {
  const uint64_t time = monotonic_time();
  seconds_[static_cast<size_t>(section)] += static_cast<double>(time - timed_until_) * 1e-9;
  timed_until_ = time;
}

void FlightRecorder::begin_section(uint64_t time) {
  set(state_.changes, state_.changes + 1);
  set(state_.section, static_cast<uint64_t>(section_));
  set(state_.section_begun, time);
  set(state_.waiting, 0);
  set(state_.limit, nanoseconds(limit(section_)));
  set(state_.settled, state_.changes);
}

void FlightRecorder::begin_step(int64_t step) {
  set(state_.step, static_cast<uint64_t>(step));
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
  const uint64_t number = state_.operations;
  FlightOperation& operation = slot(number);
  std::array<char, sizeof(operation.name_words)> text = {};
  std::strncpy(text.data(), name, text.size() - 1);
  std::array<uint64_t, 2> words = {};
  std::memcpy(words.data(), text.data(), text.size());
  set(operation.name_words[0], words[0]);
  set(operation.name_words[1], words[1]);
  set(operation.communicator, communicator);
  set(operation.sequence, sequence);
  set(operation.bytes, bytes);
  set(operation.step, state_.step);
  set(operation.begun, monotonic_time());
  set(operation.ended, 0);
  set(state_.operations, number + 1);
  return number;
}

void FlightRecorder::begin_wait(uint64_t operation, double limit) {
  add_time_to(section_);
  set(state_.changes, state_.changes + 1);
  set(state_.waiting_since, timed_until_);
  set(state_.waiting, operation + 1);
  set(state_.limit, nanoseconds(limit));
  set(state_.settled, state_.changes);
  if (section_ == Section::step) {
    observe(Section::exchange, state_.step);
  }
}

void FlightRecorder::keep_failed_state() {
  failed_ = read();
  set(state_.given_up, 1);
}

void FlightRecorder::end_operation(uint64_t operation) {
  if (state_.operations - operation <= FlightState::kOperations) {
    set(slot(operation).ended, monotonic_time());
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

std::optional<FlightState> read_flight(int process, uint64_t address) {
  FlightState state;
  iovec to = {.iov_base = &state, .iov_len = sizeof(state)};
  void* const there = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  iovec from = {.iov_base = there, .iov_len = sizeof(state)};
  const ssize_t bytes = process_vm_readv(process, &to, 1, &from, 1, 0);
  if (bytes != static_cast<ssize_t>(sizeof(state)) || state.magic != kMagic) {
    return std::nullopt;
  }
  return state;
}

}  // namespace fp8train
