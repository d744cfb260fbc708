#include "io/metrics.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/checkpoint/run_directory.h"
#include "support/file_size_limit.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

TEST_CASE("lines hold finite numbers or null, and valid text") {
  const test::TempDir dir;
  MetricsWriter(dir / "metrics.jsonl")
      .write({{"step", 3},
              {"loss", 0.1},
              {"nan", std::numeric_limits<double>::quiet_NaN()},
              {"inf", -std::numeric_limits<double>::infinity()},
              {"small", 2.5e-9},
              {"ok", true},
              {"text", "a\"\n\xFF"},
              {"inner", {{"x", uint64_t{18446744073709551615ULL}}}}});
  CHECK(test::read_file(dir / "metrics.jsonl") ==
        "{\"step\":3,\"loss\":0.1,\"nan\":null,\"inf\":null,\"small\":2.5e-09,\"ok\":true,"
        "\"text\":\"a\\\"\\n\xEF\xBF\xBD\",\"inner\":{\"x\":18446744073709551615}}\n");
}

TEST_CASE("each object is one line, visible at once, appended over restarts") {
  const test::TempDir dir;
  const auto path = dir / "metrics.jsonl";
  {
    MetricsWriter writer(path);
    writer.write(Json{{"step", 1}});
    CHECK(test::read_file(path) == "{\"step\":1}\n");
    writer.write(Json{{"step", 2}});
  }
  MetricsWriter(path).write(Json{{"step", 3}});
  CHECK(test::read_file(path) == "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  CHECK_THROWS_AS(MetricsWriter(dir / "no/metrics.jsonl"), DeviceError);
}

TEST_CASE("resuming drops a torn line and the steps that are run again") {
  const test::TempDir dir;
  const auto path = dir / "metrics.jsonl";
  test::write_file(path,
                   "{\"step\":1}\n{\"event\":\"start\"}\n{\"step\":2}\nnoise\n{\"step\":3}\n{\"st");
  MetricsWriter(path, 2).write(Json{{"step", 3}});
  CHECK(test::read_file(path) ==
        "{\"step\":1}\n{\"event\":\"start\"}\n{\"step\":2}\nnoise\n{\"step\":3}\n");
  test::write_file(path, "{\"step\":1}\n{\"step\":2");
  MetricsWriter writer(path);
  CHECK(test::read_file(path) == "{\"step\":1}\n");
}

TEST_CASE("resuming drops lines with NUL bytes, which a power failure leaves, and counts them") {
  const test::TempDir dir;
  const std::string zeros(100, '\0');
  test::write_file(dir / "metrics", "{\"step\":1}\n{\"st" + zeros + "\n" + zeros +
                                        "{\"step\":3}\n{\"step\":4}\n" + zeros);
  const MetricsWriter writer(dir / "metrics", 4);
  CHECK(writer.damaged_lines() == 2);
  CHECK(test::read_file(dir / "metrics") == "{\"step\":1}\n{\"step\":4}\n");
}

TEST_CASE("a file that grows is a regular one, and no link is followed to it") {
  const test::TempDir dir;
  test::write_file(dir / "victim", "old");
  std::filesystem::create_symlink(dir / "victim", dir / "link");
  std::filesystem::create_symlink(dir / "none", dir / "dangling");
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"link", "dangling", "pipe"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(AppendedFile(dir / name), Catch::Contains("not a regular file"));
  }
  CHECK(test::read_file(dir / "victim") == "old");
  CHECK_FALSE(std::filesystem::exists(dir / "none"));
}

TEST_CASE("a line that does not fit on the disk leaves no half line") {
  const test::TempDir dir;
  const auto path = dir / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write(Json{{"step", 1}});
  {
    const test::FileSizeLimit limit(test::read_file(path).size() + 5);
    CHECK_THROWS_AS(writer.write(Json{{"step", 2}}), DeviceError);
    CHECK(test::read_file(path) == "{\"step\":1}\n");
  }
  writer.write(Json{{"step", 3}});
  CHECK(test::read_file(path) == "{\"step\":1}\n{\"step\":3}\n");
}

TEST_CASE("the last step of a file is that of its last lines, and a FIFO is refused") {
  const test::TempDir dir;
  CHECK(last_step_in(dir / "none") == 0);
  test::write_file(dir / "empty", "");
  CHECK(last_step_in(dir / "empty") == 0);
  std::string lines;
  for (int step = 1; step <= 100000; ++step) {
    lines += "{\"step\":" + std::to_string(step) + "}\n";
  }
  test::write_file(dir / "lines", lines + "{\"step\":100001");
  CHECK(last_step_in(dir / "lines") == 100000);
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(last_step_in(dir / "pipe"), Catch::Contains("not a regular file"));
}

TEST_CASE("a run directory has its parts, and remembers each command line") {
  const test::TempDir dir;
  const RunDirectory run = create_run_directory(dir / "runs/a");
  CHECK(std::filesystem::is_directory(run.samples()));
  CHECK(std::filesystem::is_directory(run.checkpoints()));
  CHECK(run.sample(1000).filename() == "step-001000.txt");
  describe_run(run, "seed: 1\n", "fp8train train a", Json{{"threads", 2}});
  describe_run(run, "seed: 2\n", "fp8train train b", Json{{"threads", 3}});
  CHECK(test::read_file(run.config()) == "seed: 2\n");
  CHECK(test::read_file(run.command()) == "fp8train train a\nfp8train train b\n");
  CHECK(test::read_file(run.environment()) == "{\n  \"threads\": 3\n}\n");
  write_json_file(run.summary(), Json{{"loss", 1.5}});
  CHECK(test::read_file(run.summary()) == "{\n  \"loss\": 1.5\n}\n");
  test::write_file(dir / "file", "");
  CHECK_THROWS_AS(create_run_directory(dir / "file"), DeviceError);
}

}  // namespace
}  // namespace fp8train
