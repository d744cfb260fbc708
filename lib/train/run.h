#pragma once
// The run: from settings to a trained model in a run directory. Resumes automatically, evaluates,
// samples, saves, and stops on signals.

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "config/settings.h"

namespace fp8train {

class Engine;
class RunListener;
class RunWatchdog;

/// How a run ended.
enum class RunOutcome {
  finished,  ///< max_steps reached; the final evaluation is done and everything is saved
  stopped    ///< asked to stop (signal or max_time): a checkpoint is saved, run the same command to
             ///< continue
};

/// Decisions of the caller of train() that are not settings.
struct RunRequest {
  Settings settings;
  std::string resolved_yaml;        ///< the settings as YAML, which all ranks must have alike
  std::string command;              ///< the command line, stored in the run directory
  std::string version;              ///< version of the program
  RunListener* listener = nullptr;  ///< called on the first rank; null: nothing is shown
  RunWatchdog* watchdog = nullptr;  ///< null: nobody ends a run that hangs
  /// Called inside of the handler of an error that ends the run of this rank (`throw;` rethrows
  /// it), while the run's objects live: their end may take long. May not return. Empty: the caller
  /// ends the other ranks when train() has thrown.
  std::function<void()> end_other_ranks;
};

/// A function that is called before each step and, with `ends`, after it. Steps are counted from 1.
using StepObserver = void (*)(Engine& engine, int rank, int64_t step, bool ends);
/// Sets the observer of steps. Tests use it to inject faults. Null removes it.
void set_step_observer(StepObserver observer);

/// Trains, as one of the ranks of `comm`: all ranks call it with the same request, and get the same
/// outcome. The first rank writes the run's files and is the one that reports; the caller installs
/// stop handlers (base/signals.h). Throws the typed errors of base/error.h; a run that diverged
/// throws NumericError, one that waited too long for another rank TimeoutError. After an error the
/// ranks no longer wait for each other: the caller ends the others (Communicator::fail).
RunOutcome train(const RunRequest& request, Communicator& comm);

}  // namespace fp8train
