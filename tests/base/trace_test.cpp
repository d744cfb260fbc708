#include "base/trace.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "base/clock.h"

namespace fp8train {
namespace {

void pause_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace

TEST_CASE("spans count, nest and exclude their children's time", "[base]") {
  set_tracing(true);
  const Stopwatch watch;
  for (int i = 0; i < 2; ++i) {
    const TraceSpan outer("outer");
    {
      const TraceSpan inner("inner");
      pause_ms(15);
    }
    pause_ms(2);
  }
  const double elapsed = watch.seconds();
  set_tracing(false);
  const std::vector<SpanTotal> totals = trace_totals();
  REQUIRE(totals.size() == 2);
  const bool inner_first = totals[0].name == "inner";
  const SpanTotal& inner = totals[inner_first ? 0 : 1];
  const SpanTotal& outer = totals[inner_first ? 1 : 0];
  CHECK(totals[0].self_seconds >= totals[1].self_seconds);
  CHECK(inner.count == 2);
  CHECK(outer.count == 2);
  CHECK(inner.self_seconds >= 0.030);
  CHECK(outer.self_seconds >= 0.004);
  CHECK(inner.self_seconds + outer.self_seconds <= elapsed);
}

TEST_CASE("spans that are off leave no trace, and switching on starts afresh", "[base]") {
  set_tracing(true);
  { const TraceSpan span("old"); }
  set_tracing(false);
  { const TraceSpan span("unseen"); }
  CHECK(trace_totals().size() == 1);
  set_tracing(true);
  CHECK(trace_totals().empty());
  set_tracing(false);
}

TEST_CASE("a span settles what it started before it ends", "[base]") {
  int settled = 0;
  set_tracing(true, [&] {
    pause_ms(5);
    ++settled;
  });
  { const TraceSpan span("asynchronous"); }
  set_tracing(false);
  CHECK(settled == 1);
  CHECK(trace_totals().front().self_seconds >= 0.005);
  { const TraceSpan span("off"); }
  CHECK(settled == 1);
}

TEST_CASE("events are recorded on request only, as they end, until the capacity is reached",
          "[base]") {
  const auto trace = [] {
    TraceFlight flight(TraceKind::message, "flight", 12);
    const bool active = flight.active();
    {
      const TraceSpan outer("outer");
      const TraceSpan inner("inner");
    }
    flight.end();
    flight.end();  // once only
    const TraceFlight never_ends(TraceKind::exchange, "never ends");
    return active;
  };
  set_tracing(true);
  CHECK_FALSE(trace());
  CHECK(trace_events().empty());
  CHECK(trace_totals().size() == 2);

  set_tracing(true, {}, 100);
  const double before = trace_clock();
  CHECK(trace());
  const double after = trace_clock();
  set_tracing(false);
  CHECK_FALSE(trace());
  const std::vector<TraceEvent> events = trace_events();
  REQUIRE(events.size() == 3);
  const TraceEvent& inner = events[0];
  const TraceEvent& outer = events[1];
  const TraceEvent& flight = events[2];
  CHECK(std::string(inner.name) == "inner");
  CHECK(std::string(outer.name) == "outer");
  CHECK(std::string(flight.name) == "flight");
  CHECK(inner.kind == TraceKind::span);
  CHECK(flight.kind == TraceKind::message);
  CHECK(flight.bytes == 12);
  const std::vector<double> moments = {before,    flight.begin, outer.begin, inner.begin,
                                       inner.end, outer.end,    flight.end,  after};
  CHECK(std::is_sorted(moments.begin(), moments.end()));

  set_tracing(true, {}, 2);
  trace();
  trace();
  set_tracing(false);
  CHECK(trace_events().size() == 2);
}

TEST_CASE("a flight ends when those who moved the bytes say", "[base]") {
  set_tracing(true, {}, 1);
  TraceFlight flight(TraceKind::exchange, "exchange");
  const double when = trace_clock();
  pause_ms(5);
  flight.end(when);
  set_tracing(false);
  REQUIRE(trace_events().size() == 1);
  CHECK(trace_events().front().end == when);
}

TEST_CASE("a stopwatch runs forward and restarts", "[base]") {
  Stopwatch watch;
  pause_ms(5);
  CHECK(watch.seconds() >= 0.005);
  const Stopwatch since;
  watch.restart();
  const double restarted = watch.seconds();
  CHECK(restarted <= since.seconds());
}

}  // namespace fp8train
