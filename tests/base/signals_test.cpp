#include "base/signals.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

namespace fp8train {
namespace {

/// Exit status of a child that installs the handlers and raises `first`, then `second` after a
/// pause; 0 when it survives both.
int status_after(int first, int second, useconds_t pause = 0) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGHUP, SIG_DFL);  // nohup ignores it
    clear_stop_signal();
    install_stop_handlers();
    raise(first);
    usleep(pause);
    raise(second);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("a stop signal only sets the flag", "[base]") {
  std::signal(SIGHUP, SIG_DFL);
  clear_stop_signal();
  install_stop_handlers();
  CHECK(stop_signal() == 0);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    raise(number);
    CHECK(stop_signal() == number);
    clear_stop_signal();
  }
  CHECK(stop_signal() == 0);
  restore_signal_handlers();
}

TEST_CASE("the previous handlers come back", "[base]") {
  struct sigaction before = {};
  before.sa_handler = SIG_IGN;
  struct sigaction original = {};
  sigaction(SIGUSR1, &before, &original);
  install_stop_handlers();
  restore_signal_handlers();
  struct sigaction after = {};
  sigaction(SIGUSR1, &original, &after);
  CHECK(after.sa_handler == SIG_IGN);
}

TEST_CASE("SIGPIPE and SIGXFSZ end nothing, and a SIGHUP that nohup ignores stays ignored",
          "[base]") {
  CHECK(status_after(SIGPIPE, SIGXFSZ) == 0);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction original = {};
  sigaction(SIGHUP, &ignore, &original);
  clear_stop_signal();
  install_stop_handlers();
  raise(SIGHUP);
  CHECK(stop_signal() == 0);
  restore_signal_handlers();
  struct sigaction after = {};
  sigaction(SIGHUP, &original, &after);
  CHECK(after.sa_handler == SIG_IGN);
}

TEST_CASE("a second SIGINT or SIGTERM ends the process, a repeated SIGUSR1 does not", "[base]") {
  constexpr useconds_t kMoreThanAnEcho = 1'100'000;
  CHECK(status_after(SIGTERM, SIGTERM, kMoreThanAnEcho) == 128 + SIGTERM);
  CHECK(status_after(SIGUSR1, SIGTERM, kMoreThanAnEcho) == 128 + SIGTERM);
  CHECK(status_after(SIGHUP, SIGHUP, kMoreThanAnEcho) == 128 + SIGHUP);
  CHECK(status_after(SIGUSR1, SIGINT) == 128 + SIGINT);
  CHECK(status_after(SIGUSR1, SIGUSR1) == 0);
}

TEST_CASE("a SIGTERM that comes twice at once asks once", "[base]") {
  CHECK(status_after(SIGTERM, SIGTERM) == 0);
  CHECK(status_after(SIGTERM, SIGTERM, 50'000) == 0);
}

}  // namespace fp8train
