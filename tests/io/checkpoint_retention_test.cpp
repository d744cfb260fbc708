#include "io/checkpoint/checkpoint_retention.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>

#include "base/error.h"
#include "small_checkpoint.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;
using test::flip_bit;
using test::save;
using test::steps_in;
using Steps = std::vector<int64_t>;

const char* const kModel = "model.safetensors";

TEST_CASE("retention keeps the newest valid ones and never acts on a damaged newest") {
  const test::TempDir dir;
  for (const int64_t step : {1, 2, 3, 4, 5}) {
    save(dir.path(), step);
  }
  flip_bit(dir / "step-000005" / kModel, 200, 1);
  CheckpointRetention retention(dir.path(), {.keep_last = 2});
  CHECK(retention.apply().empty());
  CHECK(steps_in(dir.path()).size() == 5);
  REQUIRE(retention.take_notes().size() == 1);
  save(dir.path(), 6);
  CHECK(retention.apply().size() == 3);
  CHECK(retention.take_notes().empty());  // of 5 it has been said
  CHECK(steps_in(dir.path()) == Steps{6, 5, 4});
  CHECK(retention.apply().empty());
}

TEST_CASE("a damaged checkpoint of the right size does not count") {
  const test::TempDir dir;
  for (const int64_t step : {1, 2, 3}) {
    save(dir.path(), step);
  }
  flip_bit(dir / "step-000002" / kModel, 200, 1);
  CheckpointRetention retention(dir.path(), {.keep_last = 2});
  CHECK(retention.apply().empty());  // 3 and 1 are all that is left
  CHECK(steps_in(dir.path()) == Steps{3, 2, 1});
  CHECK_THAT(retention.take_notes().at(0),
             Catch::Contains("step-000002") && Catch::Contains("damaged"));
}

TEST_CASE("the hashes of a checkpoint that was verified are not read again, its sizes are") {
  const test::TempDir dir;
  for (const int64_t step : {1, 2, 3}) {
    save(dir.path(), step);
  }
  CheckpointRetention retention(dir.path(), {.keep_last = 1});
  retention.mark_verified(3);
  flip_bit(dir / "step-000003" / kModel, 200, 1);  // after it was verified
  CHECK(retention.apply().size() == 2);
  save(dir.path(), 4);
  retention.mark_verified(4);
  fs::resize_file(dir / "step-000004" / kModel, 100);
  CHECK(retention.apply().empty());
}

TEST_CASE("checkpoints of stops do not count for keep_last, and the newest of all stays") {
  const test::TempDir dir;
  const IsScheduled scheduled = [](const fs::path& folder) {
    return folder.filename().string().back() == '0';
  };
  CheckpointRetention retention(dir.path(), {.keep_last = 2}, {}, scheduled);
  const std::pair<int64_t, Steps> saves[] = {{10, {10}},     {13, {13, 10}},     {17, {17, 10}},
                                             {20, {20, 10}}, {21, {21, 20, 10}}, {22, {22, 20, 10}},
                                             {30, {30, 20}}, {40, {40, 30}}};
  for (const auto& [step, left] : saves) {
    CAPTURE(step);
    save(dir.path(), step);
    retention.mark_verified(step);
    retention.apply();
    CHECK(steps_in(dir.path()) == left);
  }
}

TEST_CASE("checkpoints of stops fill the number where there are no others") {
  const test::TempDir dir;
  CheckpointRetention retention(dir.path(), {.keep_last = 3}, {},
                                [](const fs::path&) { return false; });
  for (const int64_t step : {1, 2, 3, 4, 5}) {
    save(dir.path(), step);
  }
  flip_bit(dir / "step-000004" / kModel, 200, 1);
  CHECK(retention.apply().size() == 1);
  CHECK(steps_in(dir.path()) == Steps{5, 4, 3, 2});
}

TEST_CASE("checkpoints at multiples of a step stay") {
  const test::TempDir dir;
  CheckpointRetention retention(dir.path(), {.keep_last = 2, .keep_every = 4});
  for (int64_t step = 1; step <= 11; ++step) {
    save(dir.path(), step);
    retention.mark_verified(step);
    retention.apply();
  }
  CHECK(steps_in(dir.path()) == Steps{11, 10, 8, 4});
}

TEST_CASE("the checkpoints of the best evaluations stay") {
  const test::TempDir dir;
  // An evaluation at every second step; step 9 has none.
  const std::map<int64_t, CheckpointLoss> losses = {{1, {5.0, 1}}, {2, {2.0, 2}}, {3, {2.0, 2}},
                                                    {4, {3.0, 4}}, {5, {3.0, 4}}, {6, {2.5, 6}},
                                                    {7, {2.5, 6}}, {8, {4.0, 8}}};
  const LossOfCheckpoint loss_of = [&](const fs::path& path) -> std::optional<CheckpointLoss> {
    const auto found = losses.find(std::stoll(path.filename().string().substr(5)));
    return found == losses.end() ? std::nullopt : std::optional(found->second);
  };
  for (int64_t step = 1; step <= 9; ++step) {
    save(dir.path(), step);
  }
  SECTION("one for each evaluation, the first after it") {
    CheckpointRetention(dir.path(), {.keep_last = 1, .keep_best = 2}, loss_of).apply();
    CHECK(steps_in(dir.path()) == Steps{9, 6, 2});
  }
  SECTION("a damaged one is not among them") {
    flip_bit(dir / "step-000002" / kModel, 200, 1);
    flip_bit(dir / "step-000006" / kModel, 200, 1);
    CheckpointRetention(dir.path(), {.keep_last = 1, .keep_best = 3}, loss_of).apply();
    CHECK(steps_in(dir.path()) == Steps{9, 7, 4, 3});
  }
  SECTION("as one at a time is saved") {
    CheckpointRetention retention(dir.path(), {.keep_last = 1, .keep_best = 1}, loss_of);
    for (int64_t step = 10; step <= 12; ++step) {
      save(dir.path(), step);
      retention.apply();
    }
    CHECK(steps_in(dir.path()) == Steps{12, 2});
  }
}

TEST_CASE("a loss that is not finite is not among the best") {
  const test::TempDir dir;
  for (const int64_t step : {1, 2, 3}) {
    save(dir.path(), step);
  }
  const LossOfCheckpoint loss_of = [](const fs::path& path) -> std::optional<CheckpointLoss> {
    const bool first = path.filename() == "step-000001";
    return CheckpointLoss{first ? std::numeric_limits<double>::quiet_NaN() : 3.0, first ? 1 : 2};
  };
  CheckpointRetention(dir.path(), {.keep_last = 1, .keep_best = 3}, loss_of).apply();
  CHECK(steps_in(dir.path()) == Steps{3, 2});
}

TEST_CASE("a checkpoint that does not say why it was saved counts for keep_last") {
  const test::TempDir dir;
  for (const int64_t step : {1, 2, 3}) {
    save(dir.path(), step);
  }
  const IsScheduled scheduled = [](const fs::path& folder) {
    if (folder.filename() == "step-000002") {
      throw CheckpointError("no state.json");
    }
    return true;
  };
  CheckpointRetention(dir.path(), {.keep_last = 2}, {}, scheduled).apply();
  CHECK(steps_in(dir.path()) == Steps{3, 2});
}

TEST_CASE("what was verified is forgotten with the files, and damage is noted each time") {
  const test::TempDir dir;
  save(dir.path(), 1);
  save(dir.path(), 2);
  const fs::path model = dir / "step-000002" / kModel;
  const std::string good = test::read_file(model);
  CheckpointRetention retention(dir.path(), {.keep_last = 1});
  retention.mark_verified(2);
  fs::resize_file(model, 100);
  CHECK(retention.apply().empty());
  CHECK(retention.take_notes().size() == 1);
  test::write_file(model, good);
  flip_bit(model, 200, 1);  // of the right size again
  CHECK(retention.apply().empty());
  CHECK(retention.take_notes().empty());
  test::write_file(model, good);
  CHECK(retention.apply().size() == 1);
  fs::resize_file(model, 100);
  save(dir.path(), 1);
  CHECK(retention.apply().empty());
  CHECK(retention.take_notes().size() == 1);
}

TEST_CASE("a step that is saved again after its deletion is verified again") {
  const test::TempDir dir;
  CheckpointRetention retention(dir.path(), {.keep_last = 2});
  save(dir.path(), 1);
  save(dir.path(), 2);
  CHECK(retention.apply().empty());  // has read both
  save(dir.path(), 3);
  CHECK(retention.apply().size() == 1);
  fs::remove_all(dir / "step-000002");
  fs::remove_all(dir / "step-000003");
  save(dir.path(), 1);
  flip_bit(dir / "step-000001" / kModel, 200, 1);
  retention.apply();
  CHECK(retention.take_notes().size() == 1);
}

TEST_CASE("retention counts beyond 32 bits") {
  const test::TempDir dir;
  save(dir.path(), 1);
  save(dir.path(), 2);
  for (const int64_t keep : {(int64_t{1} << 32) + 1, int64_t{1} << 32}) {
    CHECK(CheckpointRetention(dir.path(), {.keep_last = keep}).apply().empty());
  }
  CHECK(steps_in(dir.path()) == Steps{2, 1});
}

}  // namespace
}  // namespace fp8train
