#include "train/records/run_records.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/file_size_limit.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "train/records/metric_list.h"

namespace fp8train {
namespace {

TEST_CASE("a run continues without lines of metrics that cannot be written, and counts them") {
  const test::TempDir dir;
  RunRecords records(dir / "run");
  records.begin_metrics(0, 1);
  records.write_step({.step = 1});
  const std::string first = test::read_file(records.directory().metrics());
  {
    const test::FileSizeLimit limit(first.size());
    records.write_step({.step = 2});
    records.write_validation(2, {.mean = 1.0, .targets = 10});
    CHECK(records.lost_lines() == 2);
  }
  records.write_step({.step = 3});
  CHECK(records.lost_lines() == 2);
  const std::string text = test::read_file(records.directory().metrics());
  CHECK(text.starts_with(first + "{\"step\":3,"));
  records.write_summary({});
  CHECK_THAT(test::read_file(records.directory().summary()),
             Catch::Contains("\"lost_metrics_lines\": 2"));
}

TEST_CASE("a run in a folder where others may write follows none of their links") {
  const std::string name = GENERATE("metrics.jsonl", "tensors.jsonl", "train.log", "run.lock");
  CAPTURE(name);
  const test::TempDir dir;
  test::write_file(dir / "victim", "old");
  std::filesystem::create_directory(dir / "run");
  std::filesystem::create_symlink(dir / "victim", dir / "run" / name);
  CHECK_THROWS_AS(RunRecords(dir / "run"), DeviceError);
  CHECK(test::read_file(dir / "victim") == "old");
}

TEST_CASE("TensorBoard shows the numbers of a line whose metrics have a tag") {
  CHECK(MetricLine()
            .add("tokens", 1)
            .add("epochs", nlohmann::ordered_json::object())
            .events()
            .empty());
  CHECK_FALSE(MetricLine().add("loss", 1.0).events().empty());
  const test::TempDir dir;
  RunRecords records(dir / "run");
  records.begin_metrics(0, 1);
  records.open_sinks({.tensorboard = true}, 0, "");
  records.write_step({.step = 1, .mfu = 0.5, .speed_of_light = 0.75});
  const auto shown = [&] {
    std::string text;
    for (const auto& one : std::filesystem::directory_iterator(records.directory().tensorboard())) {
      text += test::read_file(one.path());
    }
    return text;
  };
  CHECK_THAT(shown(), Catch::Contains("loss/train") && !Catch::Contains("loss/validation") &&
                          !Catch::Contains("optimizer/loss_scale") && !Catch::Contains("fp8/") &&
                          !Catch::Contains("experts/"));
  const ScalingSummary scaling;
  const std::vector<SlotReport> slots;
  records.write_step({.step = 2,
                      .experts = ExpertLoads{0.03125, 0.25, 1.5, 0.5, {}, 0.25, 0.5},
                      .loss_scale = 1.0,
                      .gpu = GpuState{"", 698.25, 1755.0, {}, {"power", "heat"}},
                      .scaling = &scaling,
                      .slots = &slots});
  CHECK_THAT(test::read_file(records.directory().metrics()),
             Catch::Contains("\"experts_dropped_percent\":3.125,\"experts_padding_percent\":25.0,"
                             "\"expert_load_most\":1.5,\"expert_load_least\":0.5,"
                             "\"router_balance_loss\":0.25,\"router_z_loss\":0.5"));
  CHECK_THAT(test::read_file(records.directory().metrics()),
             Catch::Contains("\"gpu_watts\":698.25,\"gpu_clock_mhz\":1755.0,"
                             "\"gpu_throttled_by\":\"power, heat\""));
  records.write_validation(2, {.mean = 1.0, .targets = 10});
  for (const char* tag : {"loss/train",
                          "loss/validation",
                          "optimizer/lr",
                          "optimizer/grad_norm",
                          "optimizer/skipped_steps",
                          "optimizer/loss_scale",
                          "speed/tokens_per_second",
                          "speed/tflops",
                          "speed/mfu",
                          "speed/speed_of_light",
                          "memory/bytes",
                          "fp8/saturated_percent",
                          "fp8/underflow_percent",
                          "experts/dropped_percent",
                          "experts/padding_percent",
                          "experts/load_most",
                          "experts/load_least",
                          "experts/balance_loss",
                          "experts/z_loss",
                          "gpu/watts",
                          "gpu/clock_mhz"}) {
    CHECK_THAT(shown(), Catch::Contains(tag));
  }
}

TEST_CASE("a run continues without a sink that cannot write, until sinks are opened again") {
  const test::TempDir dir;
  RunRecords records(dir / "run");
  records.begin_metrics(0, 1);
  records.open_sinks({.tensorboard = true}, 0, "");
  const auto files = [&] {
    std::vector<std::string> texts;
    for (const auto& one : std::filesystem::directory_iterator(records.directory().tensorboard())) {
      texts.push_back(test::read_file(one.path()));
    }
    return texts;
  };
  records.write_step({.step = 1});
  const std::vector<std::string> before = files();
  REQUIRE(before.size() == 1);
  {
    const test::FileSizeLimit limit(before[0].size());
    records.write_step({.step = 2});
  }
  records.write_step({.step = 3});
  CHECK(files() == before);
  CHECK_THAT(test::read_file(records.directory().metrics()), Catch::Contains("{\"step\":3,"));

  records.open_sinks({.tensorboard = true}, 1, "");
  records.write_step({.step = 2});
  CHECK(files().size() == 2);
}

TEST_CASE("every metric of the list is on the page of metrics") {
  const std::string page =
      test::read_file(std::filesystem::path(FP8TRAIN_GOLDEN_DIR).parent_path().parent_path() /
                      "docs" / "reference" / "metrics.md");
  for (const Metric& metric : kMetrics) {
    CHECK_THAT(page, Catch::Contains("`" + std::string(metric.key) + "`"));
  }
}

TEST_CASE("a FIFO in the place of a run's file is refused and waits for nobody") {
  for (const char* name : {"metrics.jsonl", "train.log"}) {
    const test::TempDir dir;
    create_run_directory(dir / "run");
    REQUIRE(mkfifo((dir / "run" / name).c_str(), 0600) == 0);
    CHECK_THAT(test::message_of<DeviceError>([&] { RunRecords(dir / "run"); }),
               Catch::Contains(name) && Catch::Contains("not a regular file"));
  }
}

}  // namespace
}  // namespace fp8train
