#pragma once
// Spans: how long each named piece of work took in total, for `bench step` and the profile in the
// docs. Off by default; a span that is off costs one branch. Only the thread that drives the step
// opens spans, and they may nest (self time excludes children). On request the first events, up to
// a given number, are stored one by one in addition to the totals, for a timeline: spans, and
// operations that run concurrently with them (TraceFlight).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fp8train {

struct SpanTotal {
  std::string name;
  double self_seconds = 0;
  uint64_t count = 0;
};

enum class TraceKind : uint8_t {
  span,
  exchange,  ///< exchange of gradients, or gathering of values: until its result is known to be
             ///< there
  message,   ///< message of a collective: until its bytes have arrived
};

struct TraceEvent {
  const char* name;
  TraceKind kind;
  double begin, end;  ///< seconds of trace_clock()
  uint64_t bytes;     ///< sent by this rank; 0 where that is not said
};

/// Seconds of a monotonic clock that the processes of one machine share.
double trace_clock();

/// Switches tracing on, which clears totals and events, or off. `settle` (may be empty) is called
/// before the end of each span: it waits for work that the span only started, so that asynchronous
/// work is charged to its own span. It must not wait for what ranks exchange, which happens
/// concurrently with the spans. `events`: how many to keep; their memory is taken now.
void set_tracing(bool on, std::function<void()> settle = {}, size_t events = 0);

/// Totals since tracing was switched on, longest self time first.
std::vector<SpanTotal> trace_totals();

/// The events since tracing was switched on, in the order of their ends, until there was no more
/// capacity. The reference is valid until tracing is switched on again.
const std::vector<TraceEvent>& trace_events();

/// Names of the spans that are open, outermost first; none while tracing is off.
std::vector<const char*> open_spans();

/// A span that lasts as long as this object lives.
class TraceSpan {
 public:
  /// `name` must outlive the program (a literal).
  explicit TraceSpan(const char* name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  bool active_;
};

/// An operation that is under way from construction until end(), both on the thread that drives the
/// step. One that never ends is not stored. As long as no events are stored, it is off and costs
/// one branch.
class TraceFlight {
 public:
  TraceFlight() = default;
  /// `name` must outlive the program.
  TraceFlight(TraceKind kind, const char* name, uint64_t bytes = 0);

  bool active() const { return event_.name != nullptr; }
  /// Ends the operation now, or at `when` by trace_clock(). Later calls do nothing.
  void end() {
    if (active()) {
      end(trace_clock());
    }
  }
  void end(double when);

 private:
  TraceEvent event_ = {};
};

}  // namespace fp8train
