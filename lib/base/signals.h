#pragma once
// SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask a run to stop at the next step boundary. The first signal
// only sets a flag; a further SIGINT, SIGTERM or SIGHUP ends the process at once with 128 + its
// number. A SIGTERM or SIGHUP within a second of the first signal is its echo and does not end the
// process: at the end of a job Slurm sends SIGTERM to a step and, a few milliseconds later, to it
// again through srun. SIGHUP stays ignored if it was (nohup). SIGPIPE and SIGXFSZ are ignored: the
// write that fails reports the error.

namespace fp8train {

/// The effect of a signal on a call that waits, such as reading from a terminal.
enum class WaitingCalls { restart, end };

/// Installs the handlers and stores the previous ones for restore_signal_handlers().
void install_stop_handlers(WaitingCalls waiting = WaitingCalls::restart);
/// Restores the handlers that install_stop_handlers() replaced. Called after it.
void restore_signal_handlers();

/// The number of the last signal that asked to stop, or 0.
int stop_signal();

/// Forgets a pending request (for tests).
void clear_stop_signal();

/// Ends the process with `code` at once: nothing is destroyed or flushed. For a process that hangs.
[[noreturn]] void end_process(int code);
/// Does the same in `seconds`, at least 1, unless the process has ended before. A timer of the
/// kernel does it (SIGALRM), whatever the threads wait for.
void end_process_within(unsigned seconds, int code);

}  // namespace fp8train
