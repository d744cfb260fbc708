#include "train/records/progress.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "support/files.h"
#include "support/temp_dir.h"
#include "train/records/run_records.h"

using namespace fp8train;
using Catch::Contains;

TEST_CASE("durations, counts and bytes read well") {
  CHECK(describe_duration(12.4) == "12s");
  CHECK(describe_duration(185) == "3m 05s");
  CHECK(describe_duration(3720) == "1h 02m");
  CHECK(describe_count(950) == "950");
  CHECK(describe_count(18230) == "18.2k");
  CHECK(describe_count(1.05e6) == "1.05M");
  CHECK(describe_bytes(512) == "512 B");
  CHECK(describe_bytes(22.4 * 1024 * 1024) == "22.4 MiB");
}

namespace {

const StepMetrics kMetrics = {.step = 120,
                              .max_steps = 2000,
                              .loss = 3.4121,
                              .lr = 2.9e-4,
                              .gradient_norm = 0.81,
                              .tokens_per_second = 18200,
                              .seconds_per_step = 0.1};

}  // namespace

TEST_CASE("a progress line has what a person asks for") {
  StepMetrics metrics = kMetrics;
  const ScalingSummary scaling = {.formats = "fp4", .underflow_percent = 0.125};
  metrics.scaling = &scaling;
  const std::string line = describe(metrics);
  CHECK_THAT(line, Contains("step 120/2000") && Contains("loss 3.4121") && Contains("2.90e-04"));
  CHECK_THAT(line, Contains("18.2k tok/s") && Contains("eta 3m 08s") && Contains("fp4 sat 0.00%"));
}

TEST_CASE("a progress line is as wide as there are columns") {
  StepMetrics metrics = kMetrics;
  metrics.skipped_steps = 1;
  const std::string all = describe(metrics);
  CHECK(all ==
        "step 120/2000 | loss 3.4121 | skipped 1 | 18.2k tok/s | eta 3m 08s | grad norm 0.810 | lr "
        "2.90e-04 | mem 0 B");
  CHECK(describe(metrics, all.size()) == all);
  CHECK(describe(metrics, all.size() - 1) == all.substr(0, all.rfind(" | ")));
  CHECK(describe(metrics, 40) == "step 120/2000 | loss 3.4121 | skipped 1");
  CHECK(describe(metrics, 5) == "step 120/2000");
}

TEST_CASE("progress that cannot be written goes on in the log") {
  const test::TempDir dir;
  std::FILE* out = std::fopen("/dev/full", "w");
  REQUIRE(out != nullptr);
  for (const auto style : {Progress::Style::plain, Progress::Style::pretty}) {
    Progress progress(style, out, dir / "log");
    CHECK_NOTHROW(progress.say("a"));
    CHECK_NOTHROW(progress.show({.step = 1, .max_steps = 2}));
    CHECK_NOTHROW(progress.finish());
    CHECK(std::ferror(out) == 0);
  }
  std::fclose(out);
  CHECK(test::read_file(dir / "log").find("step 1/2") != std::string::npos);
}

TEST_CASE("lines stay, on a terminal with the step below them, and in the log") {
  const test::TempDir dir;
  for (const auto style : {Progress::Style::plain, Progress::Style::pretty}) {
    std::FILE* out = std::fopen((dir / "out").c_str(), "w+");
    {
      Progress progress(style, out, dir / "log");
      progress.show({.step = 1, .max_steps = 2});
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      progress.tick(2, 2);
      progress.tick(2, 2);  // at once: nothing
      progress.show({.step = 2, .max_steps = 2});
    }
    std::rewind(out);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), out));
    std::fclose(out);
    const std::string first = describe({.step = 1, .max_steps = 2}) + "\n";
    const std::string second = describe({.step = 2, .max_steps = 2}) + "\n";
    const std::string ticked = "\r\x1b[Kstep 2/2\r\x1b[K";
    CHECK(text == first + (style == Progress::Style::pretty ? ticked : "") + second);
  }
  std::ifstream log(dir / "log");
  int lines = 0;
  for (std::string line; std::getline(log, line);) {
    ++lines;
  }
  CHECK(lines == 4);
}
