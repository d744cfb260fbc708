#include "base/trace.h"

#include <catch2/catch.hpp>
#include <chrono>
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

TEST_CASE("a stopwatch runs forward and restarts", "[base]") {
  Stopwatch watch;
  pause_ms(5);
  const double first = watch.seconds();
  CHECK(first >= 0.005);
  watch.restart();
  CHECK(watch.seconds() < first);
}

}  // namespace fp8train
