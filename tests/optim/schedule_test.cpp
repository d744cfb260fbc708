#include "optim/schedule.h"

#include <catch2/catch.hpp>

using namespace fp8train;

TEST_CASE("warm-up is linear and ends at the full rate") {
  const ScheduleSettings schedule = {.type = "cosine", .warmup_steps = 9, .min_lr = 0.1};
  CHECK(learning_rate(schedule, 1.0, 0, 100) == Approx(0.1));
  CHECK(learning_rate(schedule, 1.0, 8, 100) == Approx(0.9));
  CHECK(learning_rate(schedule, 1.0, 9, 100) == Approx(1.0));
}

TEST_CASE("cosine passes the middle at half way and ends at min_lr") {
  const ScheduleSettings schedule = {.type = "cosine", .warmup_steps = 0, .min_lr = 0.2};
  CHECK(learning_rate(schedule, 1.0, 50, 100) == Approx(0.6));
  CHECK(learning_rate(schedule, 1.0, 100, 100) == Approx(0.2));
  CHECK(learning_rate(schedule, 1.0, 500, 100) == Approx(0.2));
}

TEST_CASE("linear, wsd and constant") {
  ScheduleSettings schedule = {.type = "linear", .warmup_steps = 10, .min_lr = 0.0};
  CHECK(learning_rate(schedule, 2.0, 55, 100) == Approx(1.0));
  schedule = {.type = "wsd", .warmup_steps = 10, .min_lr = 0.5, .decay_steps = 20};
  CHECK(learning_rate(schedule, 1.0, 79, 100) == Approx(1.0));
  CHECK(learning_rate(schedule, 1.0, 90, 100) == Approx(0.75));
  CHECK(learning_rate(schedule, 1.0, 100, 100) == Approx(0.5));
  schedule = {.type = "constant", .warmup_steps = 0, .min_lr = 0.5};
  CHECK(learning_rate(schedule, 1.0, 99, 100) == Approx(1.0));
}
