#include "base/trace.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace fp8train {
namespace {

struct OpenSpan {
  const char* name;
  Stopwatch watch;
  double children_seconds = 0;
};

struct Tracer {
  bool on = false;
  std::function<void()> settle;
  std::vector<SpanTotal> totals;
  std::vector<OpenSpan> open;
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

}  // namespace

void set_tracing(bool on, std::function<void()> settle) {
  tracer().on = on;
  tracer().settle = std::move(settle);
  if (on) {
    tracer().totals.clear();
  }
}

std::vector<SpanTotal> trace_totals() {
  std::vector<SpanTotal> totals = tracer().totals;
  std::sort(totals.begin(), totals.end(),
            [](const SpanTotal& a, const SpanTotal& b) { return a.self_seconds > b.self_seconds; });
  return totals;
}

TraceSpan::TraceSpan(const char* name) : active_(tracer().on) {
  if (active_) {
    tracer().open.push_back({name, {}, 0});
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
  const double seconds = span.watch.seconds();
  SpanTotal& total = total_of(span.name);
  total.self_seconds += seconds - span.children_seconds;
  ++total.count;
  if (!open.empty()) {
    open.back().children_seconds += seconds;
  }
}

}  // namespace fp8train
