#include "base/flight_recorder.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace fp8train {
namespace {

void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

/// The calling thread's recorder for the life of this object.
struct Recorded {
  FlightRecorder recorder;
  Recorded() { record_flight(&recorder); }
  ~Recorded() { record_flight(nullptr); }
};

TEST_CASE("a recorder knows section, step and what the rank waits for", "[flight]") {
  Recorded here;
  const SectionScope running(Section::step);
  here.recorder.begin_step(7);
  {
    const SectionScope reading(Section::data);
    CHECK(here.recorder.read().where() == Section::data);
  }
  const uint64_t first = here.recorder.begin_operation("all_gather", 2, 31, 4096);
  here.recorder.begin_wait(first, 10);
  const FlightState waits = here.recorder.read();
  CHECK(waits.where() == Section::exchange);
  CHECK(waits.step == 7);
  CHECK(waits.limit == 10'000'000'000);
  REQUIRE(waits.waits_for() != nullptr);
  CHECK(std::string(waits.waits_for()->name.data()) == "all_gather");
  CHECK(waits.waits_for()->sequence == 31);
  CHECK(waits.waits_for()->ended == 0);
  here.recorder.end_wait();
  here.recorder.end_operation(first);
  const FlightState goes_on = here.recorder.read();
  CHECK(goes_on.where() == Section::step);
  CHECK(goes_on.waits_for() == nullptr);
  CHECK(goes_on.ring[0].ended > goes_on.ring[0].begun);
  CHECK(goes_on.changes > waits.changes);
  {
    const SectionScope saving(Section::save);
    here.recorder.begin_wait(here.recorder.begin_operation("barrier", 0, 0, 0), 0);
    CHECK(here.recorder.read().where() == Section::save);  // and not exchange
    here.recorder.end_wait();
  }
}

TEST_CASE("what is read while the rank gets on belongs together", "[flight]") {
  FlightRecorder recorder;
  SectionSeconds limits = {};
  for (size_t section = 0; section < kSections; ++section) {
    limits[section] = static_cast<double>(1 + section);
  }
  recorder.set_limits(limits);
  recorder.enter(Section::step);
  std::atomic<bool> over = false;
  std::thread rank([&] {
    for (int i = 0; i < 200'000; ++i) {
      recorder.enter(i % 2 == 0 ? Section::data : Section::step);
    }
    over = true;
  });
  int differ = 0;
  while (!over) {
    const FlightState state = recorder.read();
    differ += state.limit == (1 + static_cast<uint64_t>(state.section)) * 1'000'000'000 ? 0 : 1;
  }
  rank.join();
  CHECK(differ == 0);
}

TEST_CASE("the last operations are recorded", "[flight]") {
  FlightRecorder recorder;
  for (uint64_t i = 0; i < 100; ++i) {
    recorder.begin_operation("a_name_of_more_than_15_letters", 0, i, 0);
  }
  const FlightState state = recorder.read();
  CHECK(state.operations == 100);
  CHECK(state.ring[99 % FlightState::kOperations].sequence == 99);
  CHECK(state.ring[36 % FlightState::kOperations].sequence == 36);
  CHECK(std::string(state.ring[0].name.data()) == "a_name_of_more_");
}

TEST_CASE("a section's limit and time start again when it gets on", "[flight]") {
  Recorded here;
  SectionSeconds limits = {};
  limits[static_cast<size_t>(Section::save)] = 5;
  here.recorder.set_limits(limits);
  const SectionScope saving(Section::save);
  CHECK(here.recorder.read().limit == 5'000'000'000);
  pause(30);
  CHECK(here.recorder.read().seconds() >= 0.03);
  const uint64_t changes = here.recorder.read().changes;
  const Stopwatch since;
  section_advances();
  const double advanced = here.recorder.read().seconds();
  CHECK(advanced <= since.seconds());
  CHECK(here.recorder.read().changes > changes);
}

TEST_CASE("time is counted by section, and waiting is exchange", "[flight]") {
  Recorded here;
  here.recorder.take_seconds();
  {
    const SectionScope running(Section::step);
    pause(20);
    here.recorder.begin_wait(here.recorder.begin_operation("barrier", 0, 0, 0), 0);
    pause(40);
    here.recorder.end_wait();
    const SectionScope reading(Section::data);
    pause(60);
  }
  const SectionSeconds seconds = here.recorder.take_seconds();
  const auto of = [&](Section section) { return seconds[static_cast<size_t>(section)]; };
  CHECK(of(Section::step) >= 0.02);
  CHECK(of(Section::exchange) >= 0.04);
  CHECK(of(Section::data) >= 0.06);
  CHECK(here.recorder.take_seconds()[static_cast<size_t>(Section::data)] == 0);
}

}  // namespace
}  // namespace fp8train
