#include "base/signals.h"

#include <unistd.h>

#include <array>
#include <csignal>

namespace fp8train {
namespace {

constexpr std::array<int, 3> kStopSignals = {SIGINT, SIGTERM, SIGUSR1};

volatile std::sig_atomic_t pending_signal = 0;
std::array<struct sigaction, kStopSignals.size()> previous_actions;

extern "C" void on_stop_signal(int number) {
  if (pending_signal != 0 && number != SIGUSR1) {
    _exit(128 + number);
  }
  pending_signal = number;
}

}  // namespace

void install_stop_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &action, &previous_actions[i]);
  }
}

void restore_signal_handlers() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &previous_actions[i], nullptr);
  }
}

int stop_signal() {
  return pending_signal;
}

void clear_stop_signal() {
  pending_signal = 0;
}

}  // namespace fp8train
