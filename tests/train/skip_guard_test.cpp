// Steps that are skipped because a gradient is not finite: when a run warns, looks and ends.

#include "train/watch/divergence_watch.h"

#include <catch2/catch.hpp>

#include "train/watch/divergence.h"

using namespace fp8train;

namespace {

TrainingSettings settings_with(OnNonFinite action) {
  TrainingSettings settings;
  settings.non_finite = action;
  settings.max_consecutive_skips = 10;
  return settings;
}

ops::StepControl skipped(int64_t all, int64_t in_a_row, float loss_scale = 1.0F) {
  ops::StepControl control = {};
  control.skipped_steps = all;
  control.skipped_in_a_row = in_a_row;
  control.loss_scale = loss_scale;
  return control;
}

/// The error of a check of `steps` steps that end with step 40; its message begins "none" where
/// there was no error.
DivergenceError error_of(SkipGuard& guard, const ops::StepControl& control, int64_t steps) {
  try {
    guard.check(control, 40, steps);
  } catch (const DivergenceError& error) {
    return error;
  }
  return {"none", DivergenceKind::skipped_steps, 0};
}

}  // namespace

TEST_CASE("the first skipped step ends a run that is to stop, and names the steps it was among") {
  SkipGuard guard(settings_with(OnNonFinite::stop), false);
  guard.begin(3);
  CHECK(std::string(error_of(guard, skipped(3, 0), 5).what()) == "none");  // seen before
  guard.set_first_tensor("layers.0.up.weight");
  const DivergenceError error = error_of(guard, skipped(4, 1), 5);
  CHECK(error.kind() == DivergenceKind::non_finite_gradient);
  CHECK(error.first_step() == 36);
  CHECK_THAT(error.what(), Catch::StartsWith("1 of the 5 steps up to step 40 had") &&
                               Catch::Contains("layers.0.up.weight"));
}

TEST_CASE("so many skipped steps in a row are a divergence, which began with the first of them") {
  SkipGuard guard(settings_with(OnNonFinite::skip), false);
  guard.begin(0);
  CHECK(std::string(error_of(guard, skipped(9, 9), 9).what()) == "none");
  const DivergenceError error = error_of(guard, skipped(10, 10), 1);
  CHECK(error.kind() == DivergenceKind::skipped_steps);
  CHECK(error.first_step() == 31);
  CHECK_THAT(error.what(), Catch::Contains("the last 10 steps up to step 40"));
}

TEST_CASE("skipped steps that search for a loss scale are no divergence, until it is 1") {
  SkipGuard guard(settings_with(OnNonFinite::stop), true);
  guard.begin(0);
  CHECK(std::string(error_of(guard, skipped(12, 12, 2.0F), 12).what()) == "none");
  CHECK_FALSE(guard.wants_first_tensor(skipped(12, 12, 2.0F), 12));
  CHECK(std::string(error_of(guard, skipped(13, 13, 1.0F), 1).what()) != "none");
}

TEST_CASE("the first tensor is looked for where a row of skipped steps begins and where it ends") {
  const SkipGuard guard(settings_with(OnNonFinite::skip), false);
  CHECK_FALSE(guard.wants_first_tensor(skipped(4, 0), 5));
  CHECK(guard.wants_first_tensor(skipped(4, 4), 5));
  CHECK(guard.wants_first_tensor(skipped(5, 5), 5));
  CHECK_FALSE(guard.wants_first_tensor(skipped(6, 6), 5));
  CHECK_FALSE(guard.wants_first_tensor(skipped(9, 9), 5));
  CHECK(guard.wants_first_tensor(skipped(10, 10), 5));
}
