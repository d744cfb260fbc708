// Ranks that do something wrong, and go on or end at once.

#include <csignal>
#include <nlohmann/json.hpp>

#include "faulty.h"
#include "share.h"

namespace fp8train::test {

TEST_CASE("a rank whose weights have another bit is named, and nothing is saved over",
          "[replicas]") {
  const TextFolder folder;
  Words words = toy_run("run");
  words.insert(words.end(), {"training.global_batch_size=12", "parallelism.check_replicas=4",
                             "precision.plan=te-delayed"});
  const Words launcher = mpirun(3);
  // The save of step 10 is in flight when step 12 ends.
  const Outcome outcome =
      run_faulty(folder, launcher, with_fault("flip@1:11:layers.1.mlp.down.weight", words), 4,
                 with_file_fault(folder, "SLOW", "run/checkpoints/step-000010.partial/model", 1));
  CHECK_THAT(outcome.err, Catch::Contains("after step 12 ranks no longer hold the same bits of "
                                          "layers.1.mlp.down.weight: rank 1 (on ") &&
                              Catch::Contains("differ from the other ranks"));
  CHECK(fs::exists(folder / "run" / "checkpoints" / "step-000010"));
  CHECK_FALSE(fs::exists(folder / "run" / "checkpoints" / "step-000015"));
  CHECK_THAT(run_faulty(folder, launcher, words, 0).out, Catch::Contains("step-000010 at step 10"));
}

TEST_CASE("comparing replicas finds nothing in a good run, and changes no bit of it",
          "[replicas]") {
  using Case = std::pair<std::string, int>;
  std::vector<Case> cases;
  for (const char* each : {"te-delayed", "msamp-o2", "te-blockwise", "torchao-rowwise"}) {
    for (const int stage_of_zero : {0, 1, 2, 3}) {
      cases.emplace_back(each, stage_of_zero);
    }
  }
  const Case chosen = GENERATE_COPY(from_range(Share::of_environment(2).of(cases)));
  const std::string& plan = chosen.first;
  const int stage = chosen.second;
  CAPTURE(plan, stage);
  const TextFolder folder;
  const auto compared = [&](const std::string& name, int interval) {
    Words words = toy_run(name, {"training.max_steps=6", "eval.interval=0"});
    words.insert(words.end(),
                 {"precision.plan=" + plan, "parallelism.zero_stage=" + std::to_string(stage),
                  "parallelism.check_replicas=" + std::to_string(interval)});
    run_faulty(folder, mpirun(), words, 0);
    return read_file(folder / name / "checkpoints" / "step-000006" / "model.safetensors");
  };
  CHECK(compared("often", 1) == compared("never", 0));
}

TEST_CASE("a gradient of one rank that is not finite skips the step on all ranks", "[faults]") {
  const TextFolder folder;
  Words words = toy_run("run");
  words.push_back("parallelism.check_replicas=1");
  run_faulty(folder, mpirun(), with_fault("nan@1:3", words), 0);
  const std::string metrics = read_file(folder / "run" / "metrics.jsonl");
  const nlohmann::json first = nlohmann::json::parse(lines_of(metrics).front());
  CHECK(first.at("step") == 5);
  CHECK(first.at("skipped_steps") == 1);
  CHECK_FALSE(first.at("loss").is_null());
}

TEST_CASE("a run goes on within windows that an overflow of one rank has begun again", "[faults]") {
  const TextFolder folder;
  const auto words = [](const std::string& name, const Words& more) {
    Words all = toy_run(name, {"training.max_steps=12", "precision.plan=msamp-o2",
                               "precision.amax_history_len=4", "checkpoint.interval=5"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  run_faulty(folder, mpirun(), with_fault("nan@1:9", words("whole", {})), 0);
  const std::string from = "whole/checkpoints/step-000010";
  run_faulty(folder, mpirun(), words("parts", {"checkpoint.resume=" + from}), 0);
  for (const char* name : {"model.safetensors", "scaling.safetensors"}) {
    CAPTURE(name);
    const auto saved = [&](const char* run) {
      return read_file(folder / run / "checkpoints" / "step-000012" / name);
    };
    CHECK((saved("parts") == saved("whole")));
  }
}

TEST_CASE("other faults end with their codes, and the run goes on to the same weights",
          "[faults]") {
  const auto [fault, code] =
      GENERATE(std::pair("oom@1:7", 4), std::pair("throw@0:7:data", 1),
               std::pair("exit@1:7:exchange", 1), std::pair("kill@1:10:save", 128 + SIGKILL));
  CAPTURE(fault, code);
  const TextFolder folder;
  run_faulty(folder, mpirun(), with_fault(fault, toy_run("run")), code);
  check_resumed(folder, "run");
}

/// The disk does not answer the thread of that rank, which writes its part of the checkpoint of
/// step 5.
TEST_CASE("an error while a checkpoint is written ends all ranks at once", "[faults]") {
  const auto [rank, file] = GENERATE(std::pair(0, "model"), std::pair(1, "optimizer-00001"));
  CAPTURE(rank);
  const TextFolder folder;
  const std::string fault = "throw@" + std::to_string(rank) + ":7:data";
  const Words words = toy_run("run", {"watchdog.save=20", "watchdog.end=20", "comm.timeout=20",
                                      "parallelism.zero_stage=1"});
  const Outcome outcome =
      run_faulty(folder, mpirun(), with_fault(fault, words), 1,
                 with_file_fault(folder, "HANG",
                                 std::string("run/checkpoints/step-000005.partial/") + file, 1));
  CHECK_THAT(outcome.err,
             Catch::Contains(rank == 0 ? "error: internal: " : "error: rank 1: internal: ") &&
                 !Catch::Contains("watchdog"));
  CHECK_FALSE(fs::exists(folder / "run" / "checkpoints" / "step-000005"));
  // A rank that ends itself leaves no lock to a run on another machine.
  CHECK(read_file(folder / "run" / "run.lock").empty() == (rank == 0));
  check_resumed(folder, "run");
}

TEST_CASE("an error of a single process is said before it waits for a disk", "[faults]") {
  const TextFolder folder;
  const Outcome outcome =
      run_faulty(folder, {}, with_fault("throw@0:7:data", toy_run("run", {"watchdog.save=2"})), 86,
                 with_file_fault(folder, "HANG", "run/checkpoints/step-000005.partial/model", 1));
  CHECK_THAT(outcome.err, Catch::Contains("error: internal: ") &&
                              Catch::Contains("watchdog: save took longer than 2 s"));
}

TEST_CASE("an error of a single process loses no checkpoint that is being written", "[faults]") {
  const TextFolder folder;
  run_faulty(folder, {}, with_fault("throw@0:6:data", toy_run("run")), 1,
             with_file_fault(folder, "SLOW", "run/checkpoints/step-000005.partial/model", 1));
  CHECK(fs::exists(folder / "run" / "checkpoints" / "step-000005" / "MANIFEST.json"));
}

TEST_CASE("the shipped program knows no faults", "[faults]") {
  const TextFolder folder;
  const Outcome outcome =
      run_program(folder.path(), with_fault("kill@0:1", toy_run("run")), rank_environment());
  CHECK(outcome.code == 2);
  CHECK_FALSE(fs::exists(folder / "run"));
}

}  // namespace fp8train::test
