// A run that diverges in the middle of its data: it stops, or goes back and leaves the batches out.

#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "diverging_runs.h"

namespace fp8train::test {

using Catch::Contains;

TEST_CASE("a spike of the loss stops the run with 5 and its checkpoints stay") {
  const DivergingFolder folder;
  const Outcome outcome =
      expect_code(5, folder.path(), command("run", {"training.on_divergence=stop"}));
  CHECK_THAT(outcome.err, Contains("2 steps in a row, from step 21 on") &&
                              Contains("standard deviations") &&
                              Contains("The checkpoint of step 20 is intact, and the next start "
                                       "resumes from it"));
  CHECK(fs::exists(checkpoint(folder / "run", 20)));
  // Off by default.
  expect_code(0, folder.path(), command("off", {"training.spike_threshold=0"}));
}

TEST_CASE("a checkpoint of within a divergence is set aside, and the next start takes an older") {
  const DivergingFolder folder;
  const Words base = {"training.on_divergence=stop"};
  // Its last save is in the middle of the spike, which is not known to be one yet.
  expect_code(0, folder.path(), command("run", {base[0], "training.max_steps=21"}));
  REQUIRE(fs::exists(checkpoint(folder / "run", 21)));
  const Outcome outcome = expect_code(5, folder.path(), command("run", base));
  CHECK_THAT(outcome.out, Contains("resumed from run/checkpoints/step-000021"));
  CHECK_THAT(outcome.err, Contains("step-000021 is of a run that has diverged, and is now "
                                   "step-000021.diverged") &&
                              Contains("The checkpoint of step 20 is intact"));
  CHECK_FALSE(fs::exists(checkpoint(folder / "run", 21)));
  CHECK(fs::exists(checkpoint(folder / "run", 21).string() + ".diverged/model.safetensors"));
  CHECK(read_file(folder / "run/checkpoints/latest") == "step-000020\n");
  const Outcome again =
      expect_code(0, folder.path(), command("run", {base[0], "training.spike_threshold=0"}));
  CHECK_THAT(again.out, Contains("resumed from run/checkpoints/step-000020"));
}

TEST_CASE("a spike of the loss: back to before it, without its batches") {
  const DivergingFolder folder;
  const Outcome outcome = expect_code(0, folder.path(), command("run"));
  CHECK_THAT(outcome.err, Contains("the run goes back to step 20 and leaves out samples 80 to 87 "
                                   "(rollback 1 of at most 3)"));
  check_rolled_back_once(folder / "run", "loss_spike");
  for (const std::string& line : metrics_of(folder / "run", "loss")) {
    const nlohmann::json json = nlohmann::json::parse(line);
    INFO(line);
    CHECK((json.at("step") < 21 || json.at("loss") < 1.5));
  }
}

TEST_CASE("a run that hangs on its way back is ended by the watchdog, and goes back again") {
  const DivergingFolder folder;
  Words words = command("run", {"watchdog.start_up=2"});
  words.insert(words.begin(), {"--fault", "hang@0:22:start_up"});
  Process process(folder.path(), words, {}, {}, FP8TRAIN_FAULTY_PROGRAM);
  const Outcome outcome = process.wait();
  CAPTURE(outcome.err);
  CHECK(outcome.code == 86);
  CHECK_THAT(outcome.err, Contains("watchdog: start_up took longer than 2 s") &&
                              Contains("): step 22, in start_up for"));
  expect_code(0, folder.path(), command("run"));
  check_rolled_back_once(folder / "run", "loss_spike");
}

TEST_CASE("a spike is found at the next line of the log or the next save, whichever comes first") {
  const DivergingFolder folder;
  expect_code(0, folder.path(), command("run", {"logging.interval=1000"}));
  const nlohmann::json rollbacks = state_of(checkpoint(folder / "run", kSteps)).at("rollbacks");
  REQUIRE(rollbacks.size() == 1);
  CHECK(rollbacks[0].at("from_step") == 25);
  CHECK(rollbacks[0].at("to_step") == 20);
  CHECK(rollbacks[0].at("end_sample") == 25 * 4);
}

TEST_CASE("no checkpoint is saved while losses are high") {
  const DivergingFolder folder;
  // The save is due in the first step of the two.
  const Outcome outcome =
      expect_code(0, folder.path(), command("run", {"checkpoint.interval=7", "eval.interval=0"}));
  CHECK_THAT(outcome.err, Contains("step 21 is not saved: its loss is high") &&
                              Contains("goes back to step 14"));
}

TEST_CASE("a save that is put off is not forgotten by a stop") {
  const DivergingFolder folder;
  // Losses stay high however long the signal takes: nobody learns random letters, and there are
  // enough of them for some 30,000 steps.
  std::mt19937 random(7);
  std::string letters(4'000'000, ' ');
  for (char& letter : letters) {
    letter = static_cast<char>('!' + random() % 90);
  }
  write_file(folder / "text.txt", text_with("", 1).substr(0, 20 * kStepTokens) + letters);
  const Words more = {"checkpoint.interval=7", "training.spike_steps=1000000", "eval.interval=0",
                      "training.max_steps=1000000"};
  Process process(folder.path(), command("run", more));
  REQUIRE(process.wait_until([&] { return last_logged_step(folder / "run") >= 22; }));
  process.send(SIGTERM);
  const Outcome outcome = process.wait();
  REQUIRE(outcome.code == 75);
  CHECK_THAT(outcome.err, Contains("is not saved: its loss is high"));
  const long stopped = last_logged_step(folder / "run");
  const nlohmann::json state = state_of(checkpoint(folder / "run", static_cast<int>(stopped)));
  CHECK(state.at("save_is_due") == true);
  CHECK(state.at("is_scheduled") == false);
  // It comes with the next good step: here without a look at spikes.
  expect_code(0, folder.path(),
              command("run", {"checkpoint.interval=1000000", "training.spike_threshold=0",
                              "eval.interval=0", "checkpoint.keep_last=9",
                              "training.max_steps=" + std::to_string(stopped + 2)}));
  const fs::path next = checkpoint(folder / "run", static_cast<int>(stopped + 1));
  REQUIRE(fs::exists(next));
  CHECK_FALSE(state_of(next).contains("save_is_due"));
}

TEST_CASE("a skipped step that a stop came before is found by the resumed run") {
  const DivergingFolder folder;
  const Words base = {"training.spike_threshold=0", "training.on_divergence=stop",
                      "training.non_finite=stop"};
  Words first = base;
  first.emplace_back("training.max_steps=20");
  expect_code(0, folder.path(), command("run", first));
  // As a stop leaves it between a skipped step, 19, and the next line of the log.
  const auto change = [](std::string& text) {
    nlohmann::ordered_json state = nlohmann::ordered_json::parse(text);
    state["skipped_steps"] = 1;
    state["unseen_skips"] = 1;
    state["checked_step"] = 15;
    text = state.dump(1) + "\n";
  };
  save_changed(checkpoint(folder / "run", 20), folder / "run" / "checkpoints", 20, "state.json",
               change);
  const Outcome outcome = expect_code(5, folder.path(), command("run", base));
  CHECK_THAT(outcome.err, Contains("1 of the 6 steps up to step 21 had a gradient"));
}

TEST_CASE("a killed run that goes back ends with the bits of one that was not killed") {
  const std::string step = GENERATE("21", "22", "25", "28", "34");
  CAPTURE(step);
  const DivergingFolder folder;
  expect_code(0, folder.path(), command("whole"));
  Words killed = command("broken");
  killed.insert(killed.begin(), {"--fault", "kill@0:" + step});
  Process process(folder.path(), killed, {}, {}, FP8TRAIN_FAULTY_PROGRAM);
  REQUIRE(process.wait().code == 128 + SIGKILL);
  expect_code(0, folder.path(), command("broken"));
  check_rolled_back_once(folder / "broken", "loss_spike");
  check_same_end(folder / "whole", folder / "broken");
}

TEST_CASE("a stopped run goes back to where one goes that was not stopped") {
  const DivergingFolder folder;
  expect_code(0, folder.path(),
              command("whole",
                      {"logging.interval=5", "scheduler.type=constant", "checkpoint.keep_last=9"}));
  const Words slow = command("stopped", {"logging.interval=5", "scheduler.type=constant",
                                         "checkpoint.keep_last=9", "training.max_steps=21"});
  expect_code(0, folder.path(), slow);  // its last save is in the middle of the spike
  const nlohmann::json state = state_of(checkpoint(folder / "stopped", 21));
  CHECK(state.at("high_steps") == 1);
  CHECK(state.at("recent_losses").size() == 8);
  CHECK(state.at("is_scheduled") == false);
  expect_code(0, folder.path(),
              command("stopped",
                      {"logging.interval=5", "scheduler.type=constant", "checkpoint.keep_last=9"}));
  CHECK_FALSE(fs::exists(checkpoint(folder / "stopped", 21)));  // of after the divergence
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    CHECK(same_bytes(checkpoint(folder / "whole", kSteps) / file,
                     checkpoint(folder / "stopped", kSteps) / file));
  }
}

TEST_CASE("steps whose gradients are not finite: back, and the same as a run that began there") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current", "te-blockwise", "msamp-o2",
                                    "fp8-lm", "coat", "fp8-safe", "fp8-min");
  CAPTURE(plan);
  const PoisonedFolder folder;
  const auto words = [&](const std::string& name) {
    return PoisonedFolder::command_from_it(
        name, {"precision.plan=" + plan, "training.spike_threshold=0", "checkpoint.keep_last=9"});
  };
  const Outcome outcome = expect_code(0, folder.path(), words("run"));
  CHECK_THAT(outcome.err, Contains("training has diverged") &&
                              Contains("the first tensor that is not finite: activation "
                                       "embedding, its output") &&
                              Contains("goes back to step 20"));
  check_rolled_back_once(folder / "run", "skipped_steps");
  // A process that has seen nothing of the steps that were left out.
  save_changed(checkpoint(folder / "run", 20), folder / "fresh" / "checkpoints", 20, "state.json",
               [](std::string& text) {
                 nlohmann::ordered_json state = nlohmann::ordered_json::parse(text);
                 state["sample_position"] = 22 * 4;
                 state["tokens"] = 22 * kStepTokens;  // which are of so many samples
                 text = state.dump(1) + "\n";
               });
  expect_code(0, folder.path(), words("fresh"));
  for (const auto& entry : fs::directory_iterator(checkpoint(folder / "run", kSteps))) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".safetensors") {
      INFO(name);
      CHECK(same_bytes(entry.path(), checkpoint(folder / "fresh", kSteps) / name));
    }
  }
}

TEST_CASE("a run that diverges again and again goes back further, and stops in the end") {
  const DivergingFolder folder;
  expect_code(0, folder.path(), command("run", {"training.max_steps=10"}));  // saves 5 and 10
  const Words wild = {"optimizer.lr=1e30", "scheduler.type=constant", "training.max_rollbacks=2",
                      "training.max_consecutive_skips=2"};
  const Outcome outcome = expect_code(5, folder.path(), command("run", wild));
  CHECK_THAT(outcome.err, Contains("back to step 10") && Contains("back to step 5"));
  CHECK_THAT(outcome.err, Contains("rollback 1 of at most 2") &&
                              Contains("rollback 2 of at most 2") &&
                              Contains("went back to older checkpoints 2 times already"));
  CHECK(fs::exists(checkpoint(folder / "run", 5)));
}

TEST_CASE("a rollback ends at the checkpoint of another run, and deletes nothing") {
  const DivergingFolder folder;
  const Words rare = {"checkpoint.interval=15", "checkpoint.keep_last=9"};
  expect_code(0, folder.path(), command("run", {rare[0], rare[1], "training.max_steps=15"}));
  expect_code(
      0, folder.path(),
      command("other", {"checkpoint.interval=18", "training.max_steps=20", "training.seed=3"}));
  fs::copy(checkpoint(folder / "other", 18), checkpoint(folder / "run", 18));
  // Newer than the one that the run is told to start from, and older than the divergence.
  const Outcome outcome = expect_code(
      4, folder.path(),
      command("run", {rare[0], rare[1], "checkpoint.resume=run/checkpoints/step-000015"}));
  CHECK_THAT(outcome.out, Contains("resumed from run/checkpoints/step-000015"));
  CHECK_THAT(outcome.err, Contains("run/checkpoints/step-000018 differs from this run:") &&
                              Contains("training.seed: was 3, is "));
  CHECK(fs::exists(checkpoint(folder / "run", 15)));
  for (const auto& entry : fs::directory_iterator(checkpoint(folder / "other", 18))) {
    CHECK(same_bytes(entry.path(), checkpoint(folder / "run", 18) / entry.path().filename()));
  }
}

TEST_CASE("a run that diverges before its first checkpoint says so") {
  const DivergingFolder folder;
  const Outcome outcome = expect_code(
      5, folder.path(),
      command("run", {"optimizer.lr=1e30", "scheduler.type=constant", "checkpoint.interval=0"}));
  CHECK_THAT(outcome.err, Contains("no usable checkpoint") && Contains("checkpoint.interval"));
}

}  // namespace fp8train::test
