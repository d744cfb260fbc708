// A run that was killed, stopped or resumed ends with the bits of one that was not.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "io/checkpoint.h"
#include "program.h"

namespace fp8train::test {
namespace {

constexpr long kSteps = 40;  // kills come early enough that no machine finishes before them
const char* const kFinal = "step-000040";

/// The folder of a test: a text and runs next to each other.
class Workshop {
 public:
  Workshop() { write_file(folder_ / "text.txt", small_text(20000)); }

  const fs::path& folder() const { return folder_.path(); }
  fs::path run(const std::string& name) const { return folder_ / name; }
  fs::path final_checkpoint(const std::string& name) const {
    return run(name) / "checkpoints" / kFinal;
  }

  static Words command(const std::string& plan, const std::string& name, const Words& more = {}) {
    Words words = {"model.preset=toy",
                   "data.train=[{path: text.txt}]",
                   "data.val_fraction=0.1",
                   "data.seq_length=32",
                   "training.max_steps=" + std::to_string(kSteps),
                   "training.micro_batch_size=2",
                   "training.gradient_accumulation_steps=2",
                   "optimizer.lr=3e-3",
                   "scheduler.warmup_steps=4",
                   "eval.interval=10",
                   "eval.batches=2",
                   "sample.interval=20",
                   "sample.max_new_tokens=8",
                   "logging.interval=1",
                   "checkpoint.interval=5",
                   "threads=1",
                   "precision.plan=" + plan,
                   "output_dir=" + name};
    if (plan == "te-delayed") {
      words.push_back("precision.amax_history_len=7");
    }
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

 private:
  TempDir folder_;
};

/// metrics.jsonl without the times, and without the lines of saves, which come when they are over.
std::string timeless_metrics(const fs::path& run) {
  std::string text;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    nlohmann::ordered_json object = nlohmann::ordered_json::parse(line);
    if (object.contains("saved")) {
      continue;
    }
    for (const char* key :
         {"tokens_per_second", "seconds_per_step", "tflops", "mfu", "time", "memory_bytes"}) {
      object.erase(key);
    }
    text += object.dump() + "\n";
  }
  return text;
}

/// Training losses, step by step.
std::vector<double> logged_losses(const fs::path& run) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.contains("loss")) {
      losses.push_back(object.at("loss").get<double>());
    }
  }
  return losses;
}

void check_equal_runs(const Workshop& shop, const std::string& a, const std::string& b) {
  INFO(a << " against " << b);
  for (const auto& entry : fs::directory_iterator(shop.final_checkpoint(a))) {
    const fs::path name = entry.path().filename();
    INFO(name);
    CHECK(same_bytes(entry.path(), shop.final_checkpoint(b) / name));
  }
  const std::string metrics = timeless_metrics(shop.run(a));
  // One line a step, evaluations at 10, 20 and 30 and the final one.
  CHECK(lines_of(metrics).size() == kSteps + 4);
  CHECK(metrics == timeless_metrics(shop.run(b)));
}

/// Starts the command, kills it a little after `step` was logged.
void kill_after(const Workshop& shop, const Words& command, const std::string& name, long step,
                unsigned extra_microseconds) {
  Process process(shop.folder(), command);
  const bool reached = process.wait_until([&] { return last_logged_step(shop.run(name)) >= step; });
  if (!reached) {
    FAIL("step " << step << " was not seen: " << process.wait().err);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(extra_microseconds));
  process.send(SIGKILL);
  REQUIRE(process.wait().code == 128 + SIGKILL);
}

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
  CHECK_THAT(other.err, Catch::Contains("formats and scaled layers"));
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
  const std::string plan = GENERATE("fp32", "bf16", "fp16", "te-delayed", "te-current",
                                    "te-blockwise", "te-mxfp8", "torchao-rowwise-gw-hp", "msamp-o2",
                                    "fp8-lm", "coat", "fp8-safe", "fp8-lean", "fp8-min");
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

TEST_CASE("a run continues from a checkpoint of another plan, if it is asked to") {
  const std::string plan = GENERATE("te-delayed", "msamp-o2", "fp8-lean", "fp16");
  INFO(plan);
  const Workshop shop;
  const Words constant = {"scheduler.type=constant"};
  Words first = Workshop::command("bf16", "first", constant);
  first.push_back("training.max_steps=20");
  expect_code(0, shop.folder(), first);

  Words from = constant;
  from.push_back("checkpoint.resume=first/checkpoints/step-000020");
  const Outcome refused = expect_code(4, shop.folder(), Workshop::command(plan, "whole", from));
  CHECK_THAT(refused.err, Catch::Contains("precision plan: was bf16, is " + plan) &&
                              Catch::Contains("checkpoint.changed_plan: accept"));
  from.push_back("checkpoint.changed_plan=accept");
  const Outcome whole = expect_code(0, shop.folder(), Workshop::command(plan, "whole", from));
  CHECK_THAT(whole.out, Catch::Contains("first/checkpoints/step-000020 at step 20"));
  CHECK_THAT(whole.err, Catch::Contains("of the plan bf16 and the run continues with " + plan));

  // What it saves is of its own plan: it continues from there without the key.
  Words shorter = Workshop::command(plan, "parts", from);
  shorter.push_back("training.max_steps=30");
  expect_code(0, shop.folder(), shorter);
  const Outcome rest = expect_code(0, shop.folder(), Workshop::command(plan, "parts", constant));
  CHECK_THAT(rest.err, !Catch::Contains("continues with"));
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    INFO(name);
    CHECK(same_bytes(shop.final_checkpoint("whole") / name, shop.final_checkpoint("parts") / name));
  }
  const double untrained = logged_losses(shop.run("first")).front();
  const std::vector<double> losses = logged_losses(shop.run("whole"));
  CHECK(losses.size() == kSteps - 20);
  if (plan == "msamp-o2") {  // the first window scales by what is cast, as at the start of a run
    for (const std::string& line : lines_of(read_file(shop.run("whole") / "metrics.jsonl"))) {
      const nlohmann::json object = nlohmann::json::parse(line);
      if (object.contains("loss")) {
        CHECK(object.at("fp8_underflow_percent").get<double>() < 1.0);
        break;
      }
    }
  }
  CHECK(*std::max_element(losses.begin(), losses.end()) < untrained - 0.3);
}

TEST_CASE("a checkpoint whose weights are not finite is passed over") {
  const Workshop shop;
  const Words command = Workshop::command("bf16", "run", {"training.max_steps=10"});
  expect_code(0, shop.folder(), command);
  // As an older version could have written it: valid by every hash.
  const fs::path root = shop.run("run") / "checkpoints";
  const CheckpointManifest manifest = verify_checkpoint(root / "step-000010");
  CheckpointContents contents = {.run_id = manifest.run_id, .files = {}};
  for (const FileRecord& record : manifest.files) {
    std::string bytes = read_file(root / "step-000010" / record.name);
    if (record.name == "model.safetensors") {
      bytes.replace(bytes.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));
    }
    contents.files.push_back({record.name, {}, bytes});
  }
  save_checkpoint(root, 10, contents);
  const Outcome outcome =
      expect_code(0, shop.folder(), Workshop::command("bf16", "run", {"training.max_steps=12"}));
  CHECK_THAT(outcome.err,
             Catch::Contains("skipped checkpoint step-000010") && Catch::Contains("is nan"));
  CHECK_THAT(outcome.out, Catch::Contains("resumed from run/checkpoints/step-000005"));
}

TEST_CASE("values of state.json that no run has saved are refused, whatever the hashes say") {
  const Workshop shop;
  const Words command = Workshop::command("fp16", "run", {"training.max_steps=5"});
  expect_code(0, shop.folder(), command);
  const fs::path good = shop.run("run") / "checkpoints" / "step-000005";
  const nlohmann::ordered_json state =
      nlohmann::ordered_json::parse(read_file(good / "state.json"));
  const std::pair<const char*, const char*> changes[] = {
      {"step", "4"},           {"step", "5.0"},           {"sample_position", "-1"},
      {"tokens", "1e300"},     {"tokens", "-5"},          {"best_val_step", "6"},
      {"loss_scale", "0"},     {"loss_scale", "1e300"},   {"good_steps", "4294967297"},
      {"applied_steps", "-1"}, {"skipped_in_a_row", "7"}, {"high_steps", "-1"},
      {"first_high", "99"},    {"unseen_skips", "9"},     {"checked_step", "6"}};
  for (const auto& [key, value] : changes) {
    CAPTURE(key, value);
    nlohmann::ordered_json changed = state;
    changed[key] = nlohmann::ordered_json::parse(value);
    CheckpointContents contents = {.run_id = verify_checkpoint(good).run_id, .files = {}};
    for (const FileRecord& record : verify_checkpoint(good).files) {
      contents.files.push_back({record.name, {}, read_file(good / record.name)});
      if (record.name == "state.json") {
        contents.files.back().text = changed.dump();
      }
    }
    save_checkpoint(shop.folder() / "changed", 5, contents);
    const Outcome outcome =
        expect_code(4, shop.folder(),
                    Workshop::command("fp16", "other", {"checkpoint.resume=changed/step-000005"}));
    CHECK_THAT(outcome.err, Catch::Contains("state.json") && Catch::Contains(key));
  }
}

TEST_CASE("what changed since the checkpoint is said, and only that") {
  const Workshop shop;
  expect_code(0, shop.folder(), Workshop::command("bf16", "run", {"training.max_steps=10"}));
  const Outcome same = expect_code(
      0, shop.folder(), Workshop::command("bf16", "run", {"training.max_steps=10", "threads=2"}));
  CHECK_THAT(same.out, !Catch::Contains("changed since then"));
  const Outcome longer =
      expect_code(0, shop.folder(), Workshop::command("bf16", "run", {"training.max_steps=12"}));
  CHECK_THAT(longer.out, Catch::Contains("changed since then: training.max_steps: 10 -> 12"));
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
    CHECK_THAT(outcome.out, Catch::Contains("run the same command to go on"));
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
}

}  // namespace
}  // namespace fp8train::test
