// A run that was killed, stopped or resumed ends with the bits of one that was not.

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "resumed_runs.h"
#include "share.h"

namespace fp8train::test {
namespace {

TEST_CASE("killed and resumed with plans of single layers: the bits of the undisturbed run") {
  const Workshop shop;
  const auto command = [&](const std::string& name, const char* down = "msamp-o2") {
    const std::string layers =
        "precision.layers={\"*.mlp.down\": " + std::string(down) + ", \"layers.0.*\": bf16}";
    return Workshop::command("te-delayed", name, {layers});
  };
  expect_code(0, shop.folder(), command("whole"));
  kill_after(shop, command("broken"), "broken", 13, 0);
  const Outcome last = expect_code(0, shop.folder(), command("broken"));
  CHECK_THAT(last.out, Catch::Contains("resumed from broken/checkpoints/step-0000"));
  check_equal_runs(shop, "whole", "broken");
  const Outcome other = run_program(shop.folder(), command("whole", "te-blockwise"));
  CHECK(other.code == 4);
  CHECK_THAT(other.err, Catch::Contains("\n  fprop x of layers.1.mlp.down: was e4m3 tensor ") &&
                            Catch::Contains(", is e4m3 1x128 ") &&
                            Catch::Contains("\n  dgrad dy of layers.1.mlp.down: was ") &&
                            !Catch::Contains("\n  fprop x: "));
}

TEST_CASE("the summary of a resumed run has the work of its last start too") {
  const Workshop shop;
  const Words command = Workshop::command("bf16", "broken");
  kill_after(shop, command, "broken", 13, 0);
  const Outcome last = expect_code(0, shop.folder(), command);
  const std::string before = "resumed from broken/checkpoints/step-";
  REQUIRE_THAT(last.out, Catch::Contains(before));
  const long resumed = std::stol(last.out.substr(last.out.find(before) + before.size()));
  const auto summary = nlohmann::json::parse(read_file(shop.run("broken") / "summary.json"));
  const auto& start = summary.at("last_start");
  const long steps = summary.at("steps").get<long>() - resumed;
  CHECK(resumed > 0);
  CHECK(start.at("steps") == steps);
  CHECK(start.at("tokens").get<long>() * summary.at("steps").get<long>() ==
        summary.at("tokens").get<long>() * steps);
  CHECK(start.at("seconds") > 0);
  CHECK_THAT(last.out, Catch::Contains(" tokens, " + std::to_string(steps) +
                                       " steps since the last start in "));
}

TEST_CASE("a damaged header of the optimizer's file is no other run: the checkpoint before it") {
  const Workshop shop;
  const Words command = Workshop::command("bf16", "run", {"checkpoint.keep_last=9"});
  expect_code(0, shop.folder(), command);
  const fs::path newest = shop.final_checkpoint("run") / "optimizer.safetensors";
  std::string bytes = read_file(newest);
  bytes.replace(bytes.find("\"F32\""), 5, "\"I32\"");
  write_file(newest, bytes);
  Words longer = command;
  longer.push_back("training.max_steps=" + std::to_string(kSteps + 1));
  const Outcome resumed = expect_code(0, shop.folder(), longer);
  CHECK_THAT(resumed.err, Catch::Contains("skipped checkpoint " + std::string(kFinal)) &&
                              Catch::Contains("optimizer.safetensors"));
  CHECK_THAT(resumed.out, Catch::Contains("resumed from run/checkpoints/step-000035"));
}

TEST_CASE("a fallback into another stage of a schedule prints that stage's plan") {
  const Workshop shop;
  const Words command = Workshop::command(
      "te-current", "run",
      {"checkpoint.keep_last=9", "scheduler.type=constant",
       "precision.schedule=[{until: 32, plan: te-current}, {plan: te-blockwise}]"});
  expect_code(0, shop.folder(), command);
  const fs::path root = shop.run("run") / "checkpoints";
  for (const char* step : {"step-000032", "step-000035", "step-000040"}) {
    std::string bytes = read_file(root / step / "model.safetensors");
    bytes.back() ^= 1;
    write_file(root / step / "model.safetensors", bytes);
  }
  Words longer = command;
  longer.push_back("training.max_steps=" + std::to_string(kSteps + 1));
  const Outcome resumed = expect_code(0, shop.folder(), longer);
  INFO(resumed.out << resumed.err);
  const size_t first = resumed.out.find("plan    te-blockwise: ");
  const size_t second = resumed.out.find("plan    te-current: ");
  REQUIRE(first != std::string::npos);
  REQUIRE(second != std::string::npos);
  CHECK(first < second);
  CHECK(second < resumed.out.find("resumed from run/checkpoints/step-000030"));
}

TEST_CASE("killed and resumed across the stages of a schedule: the bits of the undisturbed run") {
  const Workshop shop;
  const auto command = [&](const std::string& name) {
    return Workshop::command("te-delayed", name,
                             {"precision.schedule=[{until: 6, plan: bf16}, {until: 18, plan: "
                              "te-delayed}, {plan: bf16}]"});
  };
  const Outcome whole = expect_code(0, shop.folder(), command("whole"));
  CHECK_THAT(whole.out, Catch::Contains("; from step 1 on bf16; from step 7 on te-delayed; from "
                                        "step 19 on bf16\n"));
  CHECK_THAT(whole.out, Catch::Contains("\nfrom step 7 on: plan te-delayed") &&
                            Catch::Contains("\nfrom step 19 on: bf16"));
  for (const std::string& line : lines_of(read_file(shop.run("whole") / "metrics.jsonl"))) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.contains("loss")) {
      const long step = object.at("step").get<long>();
      CAPTURE(step);
      CHECK(object.contains("fp8_underflow_percent") == (step > 6 && step <= 18));
    }
  }
  for (const long step : {4L, 12L, 23L}) {
    kill_after(shop, command("broken"), "broken", step, 0);
  }
  const Outcome last = expect_code(0, shop.folder(), command("broken"));
  CHECK_THAT(last.out, Catch::Contains("resumed from broken/checkpoints/step-0000"));
  check_equal_runs(shop, "whole", "broken");
}

TEST_CASE("killed and resumed across stages of two scaled plans: the bits of the undisturbed run") {
  const Workshop shop;
  // Its first stage ends at a checkpoint, its second one between two.
  const auto command = [&](const std::string& name) {
    return Workshop::command("te-delayed", name,
                             {"precision.schedule=[{until: 10, plan: te-delayed}, {until: 23, "
                              "plan: te-blockwise}, {until: 31, plan: bf16}, {plan: te-delayed}]",
                              "checkpoint.keep_last=20"});
  };
  const Outcome whole = expect_code(0, shop.folder(), command("whole"));
  CHECK_THAT(whole.out, Catch::Contains("from step 11 on: plan te-blockwise"));
  CHECK_THAT(whole.out, Catch::Contains("; from step 11 on te-blockwise; from step 24 on bf16; "
                                        "from step 32 on te-delayed\n"));
  for (const long step : {6L, 12L, 27L, 34L}) {
    kill_after(shop, command("broken"), "broken", step, 0);
  }
  const Outcome last = expect_code(0, shop.folder(), command("broken"));
  CHECK_THAT(last.out, !Catch::Contains("; from step"));  // in the last stage
  check_equal_runs(shop, "whole", "broken");
  // A stop at the end of a stage: its checkpoint is of the plan before.
  const fs::path checkpoints = shop.run("broken") / "checkpoints";
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename().string();
    if (name != "step-000010") {
      fs::remove_all(entry.path());
    }
  }
  REQUIRE(fs::exists(checkpoints / "step-000010"));
  fs::remove(shop.run("broken") / "summary.json");
  expect_code(0, shop.folder(), command("broken"));
  check_equal_runs(shop, "whole", "broken");
}

TEST_CASE("killed and resumed with moments of few bits: the bits of the undisturbed run") {
  const Workshop shop;
  const Words moments = {"precision.moment1=e4m3 group(128)", "precision.moment2=fp16"};
  const auto command = [&](const std::string& name) {
    return Workshop::command("te-delayed", name, moments);
  };
  expect_code(0, shop.folder(), command("whole"));
  kill_after(shop, command("broken"), "broken", 13, 0);
  const Outcome last = expect_code(0, shop.folder(), command("broken"));
  CHECK_THAT(last.out, Catch::Contains("resumed from broken/checkpoints/step-0000"));
  check_equal_runs(shop, "whole", "broken");
}

TEST_CASE("killed and resumed with muon: the bits of the undisturbed run") {
  const Workshop shop;
  const Words muon = {"optimizer.name=muon", "precision.moment1=bf16"};
  const auto command = [&](const std::string& name) {
    return Workshop::command("te-delayed", name, muon);
  };
  expect_code(0, shop.folder(), command("whole"));
  kill_after(shop, command("broken"), "broken", 13, 0);
  const Outcome last = expect_code(0, shop.folder(), command("broken"));
  CHECK_THAT(last.out, Catch::Contains("resumed from broken/checkpoints/step-0000"));
  check_equal_runs(shop, "whole", "broken");
  const Outcome other = run_program(shop.folder(), Workshop::command("te-delayed", "whole"));
  CHECK(other.code == 4);
  CHECK_THAT(other.err, Catch::Contains("optimizer.name"));
}

TEST_CASE("killed twice and resumed: the bits of the undisturbed run") {
  const std::string plan = GENERATE(from_range(Share::of_environment(2).of<std::string>(
      {"fp32", "bf16", "fp16", "te-delayed", "te-current", "te-blockwise", "te-mxfp8",
       "torchao-rowwise-gw-hp", "msamp-o2", "fp8-lm", "coat", "fp8-safe", "fp8-lean", "fp8-min"})));
  INFO(plan);
  const Workshop shop;
  expect_code(0, shop.folder(), Workshop::command(plan, "whole"));
  const Words command = Workshop::command(plan, "broken");
  std::seed_seq seed(plan.begin(), plan.end());
  std::mt19937 random(seed);
  const long first = 2 + static_cast<long>(random() % 15);
  // Step 11 comes after the checkpoint of step 5: the one of step 10 waits for it.
  const long second = std::max(11L, first + 4 + static_cast<long>(random() % 9));
  kill_after(shop, command, "broken", first, static_cast<unsigned>(random() % 5000));
  kill_after(shop, command, "broken", second, static_cast<unsigned>(random() % 5000));
  const Outcome last = expect_code(0, shop.folder(), command);
  CHECK_THAT(last.out, Catch::Contains("resumed from broken/checkpoints/step-0000"));
  check_equal_runs(shop, "whole", "broken");
}

TEST_CASE("killed and resumed with a head in FP8: the bits of the undisturbed run") {
  const std::string plan = GENERATE("te-delayed", "msamp-o2");
  INFO(plan);
  const Workshop shop;
  const auto command = [&](const std::string& name) {
    return Workshop::command(plan, name, {"precision.exempt_head=false"});
  };
  expect_code(0, shop.folder(), command("whole"));
  kill_after(shop, command("broken"), "broken", 13, 0);
  expect_code(0, shop.folder(), command("broken"));
  check_equal_runs(shop, "whole", "broken");
  // With the head in high precision it is another run.
  expect_code(0, shop.folder(), Workshop::command(plan, "other"));
  CHECK(timeless_metrics(shop.run("other")) != timeless_metrics(shop.run("whole")));
}

TEST_CASE("killed again and again while it saves at every step") {
  const Workshop shop;
  expect_code(0, shop.folder(), Workshop::command("te-delayed", "whole"));
  const Words command = Workshop::command("te-delayed", "broken", {"checkpoint.interval=1"});
  std::mt19937 random(11);
  for (long step = 3; step < 30; step += 5 + static_cast<long>(random() % 3)) {
    kill_after(shop, command, "broken", step, static_cast<unsigned>(random() % 12000));
  }
  expect_code(0, shop.folder(), command);
  check_equal_runs(shop, "whole", "broken");
}

TEST_CASE("the same command twice, and with another number of threads") {
  const std::string plan =
      GENERATE("fp32", "bf16", "fp16", "te-delayed", "te-current", "torchao-rowwise");
  INFO(plan);
  const Workshop shop;
  expect_code(0, shop.folder(), Workshop::command(plan, "once"));
  expect_code(0, shop.folder(), Workshop::command(plan, "again"));
  check_equal_runs(shop, "once", "again");
  expect_code(0, shop.folder(), Workshop::command(plan, "two", {"threads=2"}));
  check_equal_runs(shop, "once", "two");
}

TEST_CASE("any number of threads at a size where every operation is divided") {
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed");
  INFO(plan);
  const Workshop shop;
  const Words larger = {"model.preset=nanogpt-laptop",
                        "data.seq_length=64",
                        "training.micro_batch_size=8",
                        "training.gradient_accumulation_steps=1",
                        "training.max_steps=6",
                        "sample.interval=0",
                        "eval.interval=0",
                        "checkpoint.interval=0"};
  for (const char* threads : {"1", "2", "3"}) {
    Words words = Workshop::command(plan, threads, larger);
    words.push_back(std::string("threads=") + threads);
    expect_code(0, shop.folder(), words);
  }
  for (const char* name : {"2", "3"}) {
    const fs::path file = "checkpoints/step-000006/model.safetensors";
    CHECK(same_bytes(shop.run("1") / file, shop.run(name) / file));
    CHECK(timeless_metrics(shop.run("1")) == timeless_metrics(shop.run(name)));
  }
}

TEST_CASE("a stop in the middle of an evaluation: it is made up for") {
  const Workshop shop;
  const Words often = {"eval.interval=1", "eval.batches=100", "data.val_fraction=0.5",
                       "training.max_steps=6", "sample.interval=0"};
  expect_code(0, shop.folder(), Workshop::command("bf16", "whole", often));
  const Words command = Workshop::command("bf16", "stopped", often);
  {
    Process process(shop.folder(), command);
    REQUIRE(process.wait_until([&] { return last_logged_step(shop.run("stopped")) >= 3; }));
    process.send(SIGTERM);
    REQUIRE(process.wait().code == 75);
  }
  expect_code(0, shop.folder(), command);
  CHECK(timeless_metrics(shop.run("whole")) == timeless_metrics(shop.run("stopped")));
}

TEST_CASE("a stop signal saves, exits with 75, and the same command goes on") {
  const int signal = GENERATE(SIGTERM, SIGINT, SIGUSR1, SIGHUP);
  const Workshop shop;
  expect_code(0, shop.folder(), Workshop::command("te-delayed", "whole"));
  const Words command = Workshop::command("te-delayed", "stopped", {"checkpoint.interval=0"});
  {
    Process process(shop.folder(), command);
    REQUIRE(process.wait_until([&] { return last_logged_step(shop.run("stopped")) >= 13; }));
    process.send(signal);
    const Outcome outcome = process.wait();
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 75);
    const long stopped = last_logged_step(shop.run("stopped"));
    char name[32];
    std::snprintf(name, sizeof name, "step-%06ld", stopped);
    CHECK(fs::exists(shop.run("stopped") / "checkpoints" / name));
    CHECK_THAT(outcome.out, Catch::Contains("run the same command to continue"));
  }
  expect_code(0, shop.folder(), command);
  check_equal_runs(shop, "whole", "stopped");
}

TEST_CASE("a time limit stops like a signal") {
  const Workshop shop;
  const Words command =
      Workshop::command("fp32", "limited", {"training.max_steps=1000000", "training.max_time=1s"});
  const Outcome outcome = expect_code(75, shop.folder(), command);
  CHECK_THAT(outcome.out, Catch::Contains("training.max_time"));
  CHECK(fs::exists(shop.run("limited") / "checkpoints" / "latest"));
}

TEST_CASE("a finished run that is started again trains no further") {
  const Workshop shop;
  const Words command = Workshop::command("bf16", "done");
  expect_code(0, shop.folder(), command);
  const std::string metrics = timeless_metrics(shop.run("done"));
  const std::string weights = read_file(shop.final_checkpoint("done") / "model.safetensors");
  const std::string summary = read_file(shop.run("done") / "summary.json");
  expect_code(0, shop.folder(), command);
  CHECK(read_file(shop.run("done") / "summary.json") == summary);
  CHECK(read_file(shop.final_checkpoint("done") / "model.safetensors") == weights);
  CHECK(timeless_metrics(shop.run("done")) == metrics);
  const std::string config = read_file(shop.run("done") / "config.resolved.yaml");
  const std::string commands = read_file(shop.run("done") / "command.txt");
  const Words fewer = Workshop::command("bf16", "done", {"training.max_steps=5"});
  CHECK_THAT(expect_code(0, shop.folder(), fewer).out,
             Catch::Contains("nothing to do: the checkpoint is of step 40, and the configuration "
                             "asks for 5 steps; raise training.max_steps to train further"));
  CHECK(read_file(shop.run("done") / "config.resolved.yaml") == config);
  CHECK(read_file(shop.run("done") / "command.txt") == commands);
  CHECK(read_file(shop.run("done") / "summary.json") == summary);
}

TEST_CASE("a stopped run whose steps are lowered below its checkpoint is not reported as done") {
  const Workshop shop;
  const Words endless = {"training.max_steps=1000000", "logging.interval=3"};
  {
    Process process(shop.folder(), Workshop::command("bf16", "stopped", endless));
    REQUIRE(process.wait_until([&] { return last_logged_step(shop.run("stopped")) >= 6; }));
    process.send(SIGTERM);
    REQUIRE(process.wait().code == 75);
  }
  const Words fewer = Workshop::command("bf16", "stopped", {"training.max_steps=4"});
  CHECK_THAT(expect_code(0, shop.folder(), fewer).out,
             Catch::Contains("nothing to do") && !Catch::Contains("done:"));
  CHECK(!fs::exists(shop.run("stopped") / "summary.json"));
}

}  // namespace
}  // namespace fp8train::test
