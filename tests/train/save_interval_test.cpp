#include "train/checkpoint/run_checkpoints.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "config/settings.h"

namespace fp8train {
namespace {

/// Wall time over useful time where a save costs `cost` after every `interval` seconds of training
/// and failures come with exponential gaps of `mtbf`: Daly's equation 20 without restart costs.
double time_ratio(double interval, double cost, double mtbf) {
  return mtbf * std::expm1((interval + cost) / mtbf) / interval;
}

TEST_CASE("the interval between saves loses the least time") {
  constexpr double kMtbf = 10'000;
  for (const double cost : {0.01, 1.0, 60.0, 600.0}) {
    CAPTURE(cost);
    const double found = best_save_seconds(cost, kMtbf);
    double best = 1e30;
    for (double interval = cost / 4; interval < 4 * kMtbf; interval *= 1.001) {
      best = std::min(best, time_ratio(interval, cost, kMtbf));
    }
    CHECK(time_ratio(found, cost, kMtbf) / best - 1 < 1e-4);
  }
  CHECK(best_save_seconds(0.5, 1e6) == Approx(std::sqrt(2 * 0.5 * 1e6)).epsilon(1e-3));  // Young
  CHECK(best_save_seconds(300, 100) == 100);
}

TEST_CASE("fixed intervals are multiples of their steps") {
  const SaveInterval none(0, 1);
  const SaveInterval five(5, 1);
  CHECK_FALSE(none.is_due(10));
  CHECK(five.is_due(10));
  CHECK_FALSE(five.is_due(11));
}

TEST_CASE("an automatic interval saves soon and then as seldom as the saves allow") {
  SaveInterval interval(kAutomaticInterval, 3600);
  interval.begin(100);
  CHECK_FALSE(interval.is_due(109));
  CHECK(interval.is_due(110));
  interval.failed(110);
  CHECK_FALSE(interval.is_due(119));
  CHECK(interval.is_due(120));
  const double best = best_save_seconds(0.5, 3600);  // about a minute
  interval.saved(120, {.stall_seconds = 0.5, .write_seconds = 4, .step_seconds = 0.1});
  const auto steps = static_cast<int64_t>(std::ceil(best / 0.1));
  CHECK(steps > 550);
  CHECK_FALSE(interval.is_due(120 + steps - 1));
  CHECK(interval.is_due(120 + steps));
  const auto change = interval.take_change();
  REQUIRE(change);
  CHECK(change->steps == steps);
  CHECK(change->mtbf == 3600);
  CHECK_FALSE(interval.take_change());
  // A save never begins before the one before it is written.
  interval.saved(1000, {.stall_seconds = 0.5, .write_seconds = 996, .step_seconds = 0.1});
  CHECK_FALSE(interval.is_due(1000 + 4999));
  CHECK(interval.is_due(1000 + 5000));
}

TEST_CASE("a failed save is tried again after the interval that was found") {
  SaveInterval interval(kAutomaticInterval, 3600);
  interval.begin(0);
  interval.saved(10, {.stall_seconds = 0.5, .write_seconds = 4, .step_seconds = 1});
  const auto steps = static_cast<int64_t>(std::ceil(best_save_seconds(0.5, 3600)));
  interval.failed(100);
  CHECK_FALSE(interval.is_due(100 + steps - 1));
  CHECK(interval.is_due(100 + steps));
}

TEST_CASE("a change of the interval by more than a fifth is reported") {
  SaveInterval interval(kAutomaticInterval, 3600);
  interval.begin(0);
  const auto change = [&](double step_seconds) {
    interval.saved(10, {.stall_seconds = 0.5, .write_seconds = 4, .step_seconds = step_seconds});
    return interval.take_change();
  };
  CHECK(change(0.1));
  CHECK_FALSE(change(0.09));
  CHECK_FALSE(change(0.12));
  CHECK(change(0.07));  // more steps
  CHECK_FALSE(change(0.08));
  CHECK(change(0.1));  // fewer
}

TEST_CASE("more ranks fail more often") {
  CHECK(assumed_mtbf(1) == 9000.0 * 3600);
  CHECK(assumed_mtbf(9000) == 3600);
}

}  // namespace
}  // namespace fp8train
