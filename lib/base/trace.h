#pragma once
// Spans: how long each named piece of work took in total, for `bench step` and the profile in the
// docs. Off by default; a span that is off costs one branch. Only the thread that drives the step
// opens spans, and they may nest (self time excludes children).

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

/// `settle` (may be empty) is called before the end of each span: it waits for work that the span
/// only started, so that asynchronous work is charged to its own span.
void set_tracing(bool on, std::function<void()> settle = {});

/// Totals since tracing was switched on, longest self time first.
std::vector<SpanTotal> trace_totals();

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

}  // namespace fp8train
