#pragma once
// Traced steps (base/trace.h) as figures and as a file that trace viewers open.

#include <filesystem>
#include <vector>

#include "base/trace.h"
#include "comm/communicator.h"

namespace fp8train {

/// The name of the span around a whole step.
inline constexpr const char* kStepSpan = "step";

/// Seconds in the mean step.
struct StepTimes {
  double forward = 0;
  double head = 0;      ///< with the loss, forward and backward
  double backward = 0;  ///< of all but the head
  double update = 0;
  double exchange = 0;              ///< at least one exchange of gradients is under way,
  double exchange_in_backward = 0;  ///< of it while backward runs
  double exchange_waited = 0;       ///< nothing is left to do but to wait for exchanges
  double messages = 0;              ///< messages of any collective are under way,
  double messages_in_backward = 0;  ///< of it while backward runs
};

/// Adds up the times of the steps that the events hold from start to end.
StepTimes step_times(const std::vector<TraceEvent>& events);

/// Before steps are traced for a file: throws ConfigError on all ranks where it cannot be there.
void check_timeline_path(Communicator& comm, const std::filesystem::path& path);

/// Collective. The first rank writes the events of all ranks in Chrome's trace event format, for
/// ui.perfetto.dev and chrome://tracing: a process for each rank, in it a track of nested spans,
/// and tracks for what is in flight. Ranks of a machine share its clock; those of others start it
/// where they leave a barrier.
void write_timeline(Communicator& comm, const std::filesystem::path& path,
                    const std::vector<TraceEvent>& events);

}  // namespace fp8train
