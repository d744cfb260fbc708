// Figures and files that are made of traced events.

#include "timeline.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/files.h"
#include "support/rank_threads.h"
#include "support/temp_dir.h"
#include "timeline_checks.h"

namespace fp8train {
namespace {

using Json = nlohmann::json;

/// Two steps of 10 s: backward from 4 to 8, exchanges from 5 to 7 and 6 to 9, messages from 5 to 6
/// and 8.5 to 9, waiting from 7.5 to 7.75 and 8 to 9. In eighths of a second: sums are exact.
std::vector<TraceEvent> two_steps() {
  std::vector<TraceEvent> events;
  for (const double at : {100.0, 110.0}) {
    const auto add = [&](TraceKind kind, const char* name, double begin, double end) {
      events.push_back({name, kind, at + begin, at + end, kind == TraceKind::message ? 512U : 0U});
    };
    add(TraceKind::span, "forward", 0, 3);
    add(TraceKind::span, "head", 3, 4);
    add(TraceKind::message, "all_to_all", 5, 6);
    add(TraceKind::exchange, "exchange", 5, 7);
    add(TraceKind::span, "finish_exchange", 7.5, 7.75);
    add(TraceKind::span, "backward", 4, 8);
    add(TraceKind::message, "all_gather", 8.5, 9);
    add(TraceKind::exchange, "exchange", 6, 9);
    add(TraceKind::exchange, "gather", 9, 9.25);
    add(TraceKind::span, "finish_exchange", 8, 9);
    add(TraceKind::span, "update", 9, 10);
    add(TraceKind::span, kStepSpan, 0, 10);
  }
  // A step of which only the start was stored.
  events.push_back({"forward", TraceKind::span, 120, 123, 0});
  events.push_back({"backward", TraceKind::span, 124, 128, 0});
  events.push_back({"exchange", TraceKind::exchange, 125, 126, 0});
  return events;
}

}  // namespace

TEST_CASE("times of a step count what is under way at the same time once, and whole steps only") {
  const StepTimes times = step_times(two_steps());  // exact
  CHECK(times.forward == 3);
  CHECK(times.head == 1);
  CHECK(times.backward == 4);
  CHECK(times.update == 1);
  CHECK(times.exchange == 4);
  CHECK(times.exchange_in_backward == 3);
  CHECK(times.exchange_waited == 1);
  CHECK(times.messages == 1.5);
  CHECK(times.messages_in_backward == 1);
  CHECK(step_times({}).forward == 0);
}

TEST_CASE("a timeline has the events of all ranks on one clock") {
  const test::TempDir folder;
  const auto path = folder.path() / "timeline.json";
  const auto errors = test::run_ranks(Topology::blocks(4, 2), [&](Communicator& comm) {
    check_timeline_path(comm, path);
    std::vector<TraceEvent> events = two_steps();
    for (TraceEvent& event : events) {
      event.begin += comm.rank();
      event.end += comm.rank();
    }
    events.resize(events.size() - 3);
    write_timeline(comm, path, events);
  });
  for (const std::string& error : errors) {
    CHECK(error.empty());
  }
  const Json timeline = Json::parse(test::read_file(path));
  const test::TimelineContent content = test::check_timeline(timeline);
  CHECK(content.ranks == std::set<int>{0, 1, 2, 3});
  CHECK(content.spans.at(kStepSpan) == 8);
  CHECK(content.spans.at("backward") == 8);
  CHECK(content.flights.at("exchange") == 16);
  CHECK(content.flights.at("gather") == 8);
  CHECK(content.flights.at("all_to_all") == 8);
  size_t found = 0;
  for (const Json& event : timeline.at("traceEvents")) {
    // Ranks 0 and 1 are on one machine, whose clock they share: exact to the rounding of ts. Ranks
    // of the other have a clock of their own, which starts where they leave the barrier.
    if (event.at("name") == "backward" && event.at("pid") <= 1) {
      const double step = 10e6 * static_cast<double>(found++ % 2);
      CHECK(event.at("ts").get<double>() ==
            Approx(4e6 + step + 1e6 * event.at("pid").get<double>()).margin(0.01));
      CHECK(event.at("dur") == 4e6);
    }
    if (event.at("name") == "all_gather") {
      CHECK(event.at("args").at("bytes sent") == 512);
    }
  }
  CHECK(found == 4);
}

TEST_CASE("a timeline that cannot be written is refused on all ranks before anything is measured") {
  const auto errors = test::run_ranks(Topology::blocks(2, 1), [&](Communicator& comm) {
    check_timeline_path(comm, "/no/such/folder/timeline.json");
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::Contains("--timeline") && Catch::Contains("/no/such/folder"));
  }
  for (const char* path : {"/dev/full", "/tmp"}) {
    const auto others = test::run_ranks(
        Topology::blocks(2, 1), [&](Communicator& comm) { check_timeline_path(comm, path); });
    for (const std::string& error : others) {
      CHECK_THAT(error, Catch::Contains("--timeline") && Catch::Contains(path));
    }
  }
}

}  // namespace fp8train
