// Checkpoints that are written while a run trains: what they hold, which ones stay, what a disk
// that refuses them does to the run.

#include <algorithm>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;
using Steps = std::vector<int64_t>;

constexpr uint64_t kTooSmall = 200'000;  // the weights alone have 526 KB
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

class Folder : public TextFolder {
 public:
  fs::path checkpoints(const std::string& run) const { return *this / run / "checkpoints"; }

  static Words command(const std::string& name, const Words& more = {}) {
    Words words = {"model.preset=toy",
                   "data.train=[{path: text.txt}]",
                   "data.val_fraction=0.1",
                   "data.seq_length=32",
                   "training.max_steps=24",
                   "training.micro_batch_size=2",
                   "logging.interval=1",
                   "checkpoint.interval=4",
                   "threads=1",
                   "precision.plan=te-delayed",
                   "output_dir=" + name};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  Steps steps(const std::string& run) const {
    Steps found;
    for (const CheckpointFolder& checkpoint : find_checkpoints(checkpoints(run))) {
      CHECK_NOTHROW(verify_checkpoint(checkpoint.path));
      found.push_back(checkpoint.step);
    }
    return found;
  }

  /// As the last save has written it.
  long failed_in_a_row(const std::string& run) const {
    long last = -1;
    for (const std::string& line : lines_of(read_file(*this / run / "metrics.jsonl"))) {
      last = nlohmann::json::parse(line).value("failed_saves_in_a_row", last);
    }
    return last;
  }

  /// Lines of metrics that a save has written, with this outcome.
  long saves(const std::string& run, bool saved) const {
    const fs::path file = *this / run / "metrics.jsonl";
    long count = 0;
    for (const std::string& line : fs::exists(file) ? lines_of(read_file(file)) : Words()) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      count += json.is_object() && json.value("saved", !saved) == saved ? 1 : 0;
    }
    return count;
  }
};

TEST_CASE("checkpoints written while training goes on have the bytes of those that it waited for") {
  const std::string plan = GENERATE("fp32", "te-delayed", "msamp-o2");
  CAPTURE(plan);
  const Folder folder;
  for (const char* async : {"true", "false"}) {
    expect_code(0, folder.path(),
                Folder::command(async, {std::string("checkpoint.async=") + async,
                                        "checkpoint.keep_last=100", "precision.plan=" + plan}));
    CHECK(folder.steps(async) == Steps{24, 20, 16, 12, 8, 4});
    CHECK(folder.saves(async, true) == 6);
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder.checkpoints("true"))) {
    if (entry.is_regular_file()) {
      const fs::path name = fs::relative(entry.path(), folder.checkpoints("true"));
      CAPTURE(name);
      CHECK(same_bytes(entry.path(), folder.checkpoints("false") / name));
    }
  }
}

TEST_CASE("each save is in the metrics with its times, and the summary counts them") {
  const Folder folder;
  expect_code(0, folder.path(), Folder::command("run"));
  double stall = 0;
  for (const std::string& line : lines_of(read_file(folder / "run/metrics.jsonl"))) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("saved")) {
      CHECK(json.at("save_bytes").get<double>() > 1e6);
      CHECK(json.at("save_write_seconds").get<double>() > 0);
      CHECK(json.at("failed_saves_in_a_row") == 0);
      stall += json.at("save_stall_seconds").get<double>();
    }
  }
  const auto summary = nlohmann::json::parse(read_file(folder / "run/summary.json"));
  CHECK(summary.at("saves") == 6);
  CHECK(summary.at("failed_saves") == 0);
  CHECK(summary.at("save_stall_seconds").get<double>() == Approx(stall));
}

TEST_CASE("a disk that refuses saves for a while does not end the run") {
  const std::string async = GENERATE("true", "false");
  CAPTURE(async);
  const Folder folder;
  Process process(
      folder.path(),
      Folder::command("run", {"training.max_steps=10000000", "logging.interval=1000",
                              "checkpoint.max_failed_saves=1000000", "checkpoint.async=" + async}));
  REQUIRE(process.wait_until([&] { return folder.saves("run", true) > 0; }));
  process.limit_file_size(kTooSmall);
  REQUIRE(process.wait_until([&] { return folder.saves("run", false) > 2; }));
  const long before = folder.saves("run", true);
  process.limit_file_size(kUnlimited);
  REQUIRE(process.wait_until([&] { return folder.saves("run", true) > before + 1; }));
  process.send(SIGTERM);
  const Outcome outcome = process.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 75);
  CHECK_THAT(outcome.err, Contains("is not saved: ") && Contains("File too large") &&
                              Contains("the next save tries again") && Contains("is intact"));
  CHECK(folder.failed_in_a_row("run") == 0);
  Steps steps = folder.steps("run");
  steps.erase(steps.begin());  // that of the stop, which may be at the interval
  CHECK((steps.size() == 1 || (steps.size() == 2 && steps.at(0) == steps.at(1) + 4)));
  for (const auto& entry : fs::directory_iterator(folder.checkpoints("run"))) {
    CHECK(entry.path().extension() != ".partial");
  }
}

TEST_CASE("too many failed saves in a row end the run, after a last attempt") {
  const std::string async = GENERATE("true", "false");
  CAPTURE(async);
  const Folder folder;
  Process process(folder.path(),
                  Folder::command("run", {"training.max_steps=10000000", "logging.interval=1000",
                                          "checkpoint.async=" + async}));
  REQUIRE(process.wait_until([&] { return folder.saves("run", true) > 0; }));
  process.limit_file_size(kTooSmall);
  const Outcome outcome = process.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(folder.saves("run", false) == 4);
  CHECK_THAT(outcome.err, Contains("4 saves in a row failed") && Contains("File too large") &&
                              Contains("is intact"));
  CHECK(folder.steps("run").size() >= 1);
}

TEST_CASE("a run whose last save fails twice does not end as done") {
  const Folder folder;
  Process process(folder.path(), Folder::command("run", {"checkpoint.interval=0"}), {},
                  {"/bin/sh", "-c", "ulimit -f 300; exec \"$0\" \"$@\""});
  const Outcome outcome = process.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(folder.saves("run", false) == 2);
  CHECK_THAT(outcome.err,
             Contains("2 saves in a row failed") && Contains("Nothing had been saved"));
  CHECK_THAT(outcome.out, !Contains("done"));
  expect_code(0, folder.path(), Folder::command("run", {"checkpoint.interval=0"}));
  CHECK(folder.steps("run") == Steps{24});
}

TEST_CASE("which checkpoints stay") {
  const Folder folder;
  const Words rules = {"checkpoint.interval=2", "checkpoint.keep_last=1", "eval.interval=4",
                       "eval.batches=2", "training.max_steps=26"};
  Words every = rules;
  every.emplace_back("checkpoint.keep_every=10");
  expect_code(0, folder.path(), Folder::command("every", every));
  CHECK(folder.steps("every") == Steps{26, 20, 10});
  Words best = rules;
  best.emplace_back("checkpoint.keep_best=2");
  best.emplace_back("optimizer.lr=1e-3");
  expect_code(0, folder.path(), Folder::command("best", best));
  std::vector<std::pair<double, int64_t>> losses;
  for (const std::string& line : lines_of(read_file(folder / "best/metrics.jsonl"))) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("val_loss") && json.at("step") != 26) {  // which comes after the last save
      losses.emplace_back(json.at("val_loss").get<double>(), json.at("step").get<int64_t>());
    }
  }
  REQUIRE(losses.size() == 6);
  std::sort(losses.begin(), losses.end());
  Steps expected = {26, losses[0].second, losses[1].second};
  std::sort(expected.rbegin(), expected.rend());
  CHECK(folder.steps("best") == expected);
}

TEST_CASE("an automatic interval is found and logged, and the run saves at its end") {
  const Folder folder;
  const Outcome outcome = expect_code(
      0, folder.path(),
      Folder::command("run", {"checkpoint.interval=auto", "job.mtbf=1s", "training.max_steps=1000",
                              "checkpoint.keep_last=1000", "logging.interval=100"}));
  CHECK_THAT(outcome.err, Contains("checkpoint.interval auto: a save every ") &&
                              Contains("the job is taken to fail every 1s"));
  const Steps steps = folder.steps("run");
  REQUIRE(steps.size() >= 3);
  CHECK(steps.front() == 1000);
  CHECK(steps.back() == 10);
}

TEST_CASE("killed at any time, every checkpoint that has its name is whole") {
  const Folder folder;
  for (int kill = 0; kill < 12; ++kill) {
    const Words command = Folder::command(
        "run", {"training.max_steps=10000000", "checkpoint.interval=1", "logging.interval=1000"});
    const long before = folder.saves("run", true);
    Process process(folder.path(), command);
    REQUIRE(process.wait_until([&] { return folder.saves("run", true) > before + kill % 4; }));
    process.send(SIGKILL);
    process.wait();
    CHECK_FALSE(folder.steps("run").empty());
  }
}

}  // namespace
}  // namespace fp8train::test
