#include "base/trace.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace fp8train {
namespace {

struct OpenSpan {
  const char* name;
  double begin;
  double children_seconds = 0;
};

struct Tracer {
  bool on = false;
  std::function<void()> settle;
  std::vector<SpanTotal> totals;
  std::vector<OpenSpan> open;
  std::vector<TraceEvent> events;
  size_t capacity = 0;  ///< for events; 0: none are stored
};

Tracer& tracer() {
  static Tracer instance;
  return instance;
}

SpanTotal& total_of(const char* name) {
  auto& totals = tracer().totals;
  const auto found = std::find_if(totals.begin(), totals.end(),
                                  [name](const SpanTotal& total) { return total.name == name; });
  return found != totals.end() ? *found : totals.emplace_back(SpanTotal{name, 0, 0});
}

void keep(const TraceEvent& event) {
  if (tracer().events.size() < tracer().capacity) {
    tracer().events.push_back(event);
  }
}

}  // namespace

double trace_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void set_tracing(bool on, std::function<void()> settle, size_t events) {
  tracer().on = on;
  tracer().settle = std::move(settle);
  tracer().capacity = on ? events : 0;
  if (on) {
    tracer().totals.clear();
    tracer().events.clear();
    tracer().events.reserve(events);
  }
}

std::vector<SpanTotal> trace_totals() {
  std::vector<SpanTotal> totals = tracer().totals;
  std::sort(totals.begin(), totals.end(),
            [](const SpanTotal& a, const SpanTotal& b) { return a.self_seconds > b.self_seconds; });
  return totals;
}

const std::vector<TraceEvent>& trace_events() {
  return tracer().events;
}

std::vector<const char*> open_spans() {
  std::vector<const char*> names;
  names.reserve(tracer().open.size());
  for (const OpenSpan& span : tracer().open) {
    names.push_back(span.name);
  }
  return names;
}

TraceSpan::TraceSpan(const char* name) : active_(tracer().on) {
  if (active_) {
    tracer().open.push_back({name, trace_clock(), 0});
  }
}

TraceSpan::~TraceSpan() {
  if (!active_) {
    return;
  }
  if (tracer().settle) {
    try {
      tracer().settle();
    } catch (...) {  // the next call on the device reports it; a destructor does not throw
    }
  }
  auto& open = tracer().open;
  const OpenSpan span = open.back();
  open.pop_back();
  const double now = trace_clock();
  const double seconds = now - span.begin;
  SpanTotal& total = total_of(span.name);
  total.self_seconds += seconds - span.children_seconds;
  ++total.count;
  if (!open.empty()) {
    open.back().children_seconds += seconds;
  }
  keep({span.name, TraceKind::span, span.begin, now, 0});
}

TraceFlight::TraceFlight(TraceKind kind, const char* name, uint64_t bytes) {
  if (tracer().capacity > 0) {
    event_ = {name, kind, trace_clock(), 0, bytes};
  }
}

void TraceFlight::end(double when) {
  if (active()) {
    event_.end = when;
    keep(event_);
    event_ = {};
  }
}

}  // namespace fp8train
