#include "base/signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace fp8train {
namespace {

constexpr std::array<int, 4> kStopSignals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
/// A write that fails with EPIPE or EFBIG is an ordinary error and must not end the process without
/// a checkpoint.
constexpr std::array<int, 2> kIgnoredSignals = {SIGPIPE, SIGXFSZ};

constexpr int64_t kEchoNanoseconds = 1'000'000'000;

volatile std::sig_atomic_t pending_signal = 0;
std::atomic<int64_t> asked_at = 0;                         ///< when the first signal came
static_assert(std::atomic<int64_t>::is_always_lock_free);  // else no handler may touch it
std::array<struct sigaction, kStopSignals.size()> previous_actions;
std::array<struct sigaction, kIgnoredSignals.size()> previous_ignored;

volatile std::sig_atomic_t code_at_alarm = 1;

extern "C" void on_alarm(int /*number*/) {
  _exit(code_at_alarm);
}

int64_t now() {
  struct timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

extern "C" void on_stop_signal(int number) {
  if (pending_signal == 0) {
    asked_at = now();
  } else if (number == SIGINT ||
             ((number == SIGTERM || number == SIGHUP) && now() - asked_at > kEchoNanoseconds)) {
    _exit(128 + number);
  }
  pending_signal = number;
}

}  // namespace

void install_stop_handlers(WaitingCalls waiting) {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = waiting == WaitingCalls::restart ? SA_RESTART : 0;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &action, &previous_actions[i]);
    if (kStopSignals[i] == SIGHUP && previous_actions[i].sa_handler == SIG_IGN) {
      sigaction(SIGHUP, &previous_actions[i], nullptr);  // started by nohup
    }
  }
  action.sa_handler = SIG_IGN;
  for (size_t i = 0; i < kIgnoredSignals.size(); ++i) {
    sigaction(kIgnoredSignals[i], &action, &previous_ignored[i]);
  }
}

void restore_signal_handlers() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &previous_actions[i], nullptr);
  }
  for (size_t i = 0; i < kIgnoredSignals.size(); ++i) {
    sigaction(kIgnoredSignals[i], &previous_ignored[i], nullptr);
  }
}

int stop_signal() {
  return pending_signal;
}

void clear_stop_signal() {
  pending_signal = 0;
}

void end_process(int code) {
  _exit(code);
}

void end_process_within(unsigned seconds, int code) {
  code_at_alarm = code;
  struct sigaction action = {};
  action.sa_handler = on_alarm;
  sigemptyset(&action.sa_mask);
  sigaction(SIGALRM, &action, nullptr);
  alarm(seconds);
}

}  // namespace fp8train
