#include "run_screen.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <thread>

#include "overview.h"
#include "support/files.h"
#include "support/temp_dir.h"

using namespace fp8train;
using Catch::Contains;

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
  CHECK_THAT(line, !Contains("mfu") && !Contains("light"));
  metrics.mfu = 0.412;
  metrics.speed_of_light = 0.74;
  CHECK_THAT(describe(metrics), Contains("2.90e-04 | mfu 41.2% | speed of light 74.0% | fp4 sat"));
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
  for (const auto style : {RunScreen::Style::plain, RunScreen::Style::pretty}) {
    RunScreen screen(style, out);
    screen.opened({dir.path()});
    CHECK_NOTHROW(screen.changed("a"));
    CHECK_NOTHROW(screen.measured({.step = 1, .max_steps = 2}));
    CHECK_NOTHROW(screen.did_all_steps());
    CHECK(std::ferror(out) == 0);
  }
  std::fclose(out);
  CHECK(test::read_file(dir / "train.log").find("step 1/2") != std::string::npos);
}

TEST_CASE("lines stay, on a terminal with the step below them, and in the log") {
  const test::TempDir dir;
  for (const auto style : {RunScreen::Style::plain, RunScreen::Style::pretty}) {
    std::FILE* out = std::fopen((dir / "out").c_str(), "w+");
    {
      RunScreen screen(style, out);
      screen.opened({dir.path()});
      screen.measured({.step = 1, .max_steps = 2});
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      screen.did_step(2, 2);
      screen.did_step(2, 2);  // at once: nothing
      screen.measured({.step = 2, .max_steps = 2});
    }
    std::rewind(out);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), out));
    std::fclose(out);
    const std::string first = describe({.step = 1, .max_steps = 2}) + "\n";
    const std::string second = describe({.step = 2, .max_steps = 2}) + "\n";
    const std::string ticked = "\r\x1b[Kstep 2/2\r\x1b[K";
    CHECK(text == first + (style == RunScreen::Style::pretty ? ticked : "") + second);
  }
  std::ifstream log(dir / "train.log");
  int lines = 0;
  for (std::string line; std::getline(log, line);) {
    ++lines;
  }
  CHECK(lines == 4);
}

TEST_CASE("the last line remarks on a loss far above the first, or of equal probabilities") {
  const auto line = [](double first, double last) {
    const test::TempDir dir;
    Session session;
    session.engine.model.vocab_size = 258;
    TrainingState state;
    state.step = 4;
    state.tokens = 1200;
    state.first_loss = first;
    state.loss = last;
    RunScreen screen(RunScreen::Style::quiet, stdout);
    screen.opened({dir.path()});
    screen.finished(state, session, 4, 61);
    const std::string text = test::read_file(dir / "train.log");
    return text.substr(0, text.find("; everything is in"));
  };
  CHECK_THAT(line(5.5, 571962), Contains("far above 5.5000, where it began"));
  CHECK_THAT(line(5.5, 6.51), Contains("far above"));
  CHECK_THAT(line(5.6, 5.55296), Contains("ln 258"));
  for (const double usual : {5.5, 6.49, 2.1, 0.0, 5.5534, 5.5525}) {
    CHECK(line(5.5, usual) ==
          fmt::format("done: 4 steps, 1.2k tokens in 1m 01s; loss {:.4f}", usual));
  }
  CHECK_THAT(line(0, 571962), !Contains("far above"));  // the first is not known
}

TEST_CASE("memory is said to be of the stage that needs the most") {
  Session session;
  session.engine.plan.name = "te-current";
  DryRunStep largest;
  largest.plan_name = "te-mxfp8";
  CHECK(describe_largest(session, largest) ==
        "  in the stage of plan te-mxfp8, which needs the most");
  session.engine.plan.name = "te-mxfp8";
  CHECK(describe_largest(session, largest).empty());
}
