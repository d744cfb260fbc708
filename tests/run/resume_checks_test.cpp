// What a checkpoint must be for a run to continue from it, and what is said of what has changed.

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "io/checkpoint/checkpoint.h"
#include "resumed_runs.h"
#include "support/save_checkpoint.h"

namespace fp8train::test {
namespace {

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
                              Catch::Contains("checkpoint.changed_plan=accept") &&
                              !Catch::Contains("fprop: "));
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

TEST_CASE("what was frozen stays frozen, and more may be; nothing saved is passed over") {
  const Workshop shop;
  const auto command = [](const char* frozen, const char* steps) {
    return Workshop::command("te-delayed", "run", {frozen, steps});
  };
  expect_code(0, shop.folder(),
              command("training.frozen=[\"layers.0.*\"]", "training.max_steps=10"));
  expect_code(
      0, shop.folder(),
      command("training.frozen=[\"layers.0.*\", embedding.weight]", "training.max_steps=20"));
  const Outcome refused =
      expect_code(4, shop.folder(), command("training.frozen=[]", "training.max_steps=30"));
  CHECK_THAT(refused.err,
             Catch::Contains("step-000020 differs from this run:") &&
                 Catch::Contains("training.frozen: had embedding.weight, and has it no longer") &&
                 Catch::Contains("to continue that run: change this back"));
  CHECK_THAT(read_file(shop.run("run") / "train.log"),
             Catch::Contains(" error ") &&
                 Catch::Contains("step-000020 differs from this run:\n") &&
                 Catch::Contains("training.frozen: had embedding.weight"));
  Words check =
      command("training.frozen=[\"layers.0.*\", embedding.weight]", "training.max_steps=30");
  check.insert(check.begin(), "check");
  CHECK_THAT(expect_code(0, shop.folder(), check).out, Catch::Contains("step 20 of 30"));
  const Outcome checked = run_program(
      shop.folder(), Workshop::command("te-delayed", "run", {"training.frozen=embedding.weight"}));
  CHECK(checked.code == 4);
}

TEST_CASE("a checkpoint that does not count first windows has them from the run's first step") {
  const Workshop shop;
  const Words words = {"training.max_steps=20", "checkpoint.keep_last=9"};
  expect_code(0, shop.folder(), Workshop::command("msamp-o2", "whole", words));
  const fs::path saved = shop.run("whole") / "checkpoints" / "step-000010";
  const CheckpointManifest manifest = verify_checkpoint(saved);
  CheckpointContents contents = {.run_id = manifest.run_id, .files = {}};
  int changed = 0;
  for (const FileRecord& record : manifest.files) {
    std::string bytes = read_file(saved / record.name);
    for (size_t at = 0; (at = bytes.find("updates_left", at)) != std::string::npos; ++changed) {
      bytes.replace(at, 12, "updates_gone");
    }
    contents.files.push_back({record.name, {}, bytes});
  }
  CHECK(changed > 0);
  fs::create_directories(shop.run("parts") / "checkpoints");
  save_checkpoint(shop.run("parts") / "checkpoints", 10, contents);
  expect_code(0, shop.folder(), Workshop::command("msamp-o2", "parts", words));
  const auto end = [&](const char* run) {
    return shop.run(run) / "checkpoints" / "step-000020" / "scaling.safetensors";
  };
  CHECK(same_bytes(end("whole"), end("parts")));
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
  const std::pair<const char*, const char*> changes[] = {{"step", "4"},
                                                         {"step", "5.0"},
                                                         {"sample_position", "-1"},
                                                         {"tokens", "1e300"},
                                                         {"tokens", "-5"},
                                                         {"best_val_step", "6"},
                                                         {"val_step", "6"},
                                                         {"loss_scale", "0"},
                                                         {"loss_scale", "1e300"},
                                                         {"loss_scale", "1e-60"},
                                                         {"good_steps", "4294967297"},
                                                         {"applied_steps", "-1"},
                                                         {"skipped_in_a_row", "7"},
                                                         {"high_steps", "-1"},
                                                         {"first_high", "99"},
                                                         {"unseen_skips", "9"},
                                                         {"checked_step", "6"},
                                                         {"rollbacks", R"([{"from_step": 0}])"},
                                                         {"formats", "7"},
                                                         {"formats", "{}"}};
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

TEST_CASE("a checkpoint of an earlier version has its formats in one text") {
  const Workshop shop;
  const auto command = [](const Words& more) {
    Words words = Workshop::command("te-delayed", "run", more);
    words.push_back("precision.layers={\"*.mlp.*\": bf16, layers.1.mlp.down: te-current}");
    return words;
  };
  expect_code(0, shop.folder(), command({"precision.moment1=bf16", "training.max_steps=5"}));
  const fs::path root = shop.run("run") / "checkpoints";
  const CheckpointManifest manifest = verify_checkpoint(root / "step-000005");
  CheckpointContents contents = {.run_id = manifest.run_id, .files = {}};
  const std::string delayed = " tensor delayed(7, max)";
  std::string text;
  for (const auto& [product, scale, end] :
       {std::tuple("e4m3", delayed, "; "), std::tuple("e5m2", delayed, "; "),
        std::tuple("e5m2", delayed, "; kept bf16; "),
        std::tuple("e4m3", std::string(" tensor current"), " in layers.1.mlp.down; "),
        std::tuple("e5m2", std::string(" tensor current"), " in layers.1.mlp.down; "),
        std::tuple("e5m2", std::string(" tensor current"), " in layers.1.mlp.down; ")}) {
    text += product + scale + " x e4m3" + scale + end;
  }
  for (const FileRecord& record : manifest.files) {
    contents.files.push_back({record.name, {}, read_file(root / "step-000005" / record.name)});
    if (record.name == "state.json") {
      auto state = nlohmann::ordered_json::parse(*contents.files.back().text);
      for (const nlohmann::ordered_json& tensor : state.at("formats").at("scaled_tensors")) {
        text += tensor.get<std::string>() + " ";
      }
      state.at("formats") = text;
      contents.files.back().text = state.dump(1) + "\n";
    }
  }
  save_checkpoint(root, 5, contents);
  const auto refused = [&](const Words& more) {
    return expect_code(4, shop.folder(), command(more)).err;
  };
  CHECK_THAT(
      refused({"precision.moment1=fp16"}),
      Catch::Contains("\n  formats: was e4m3") && Catch::Contains("stored fp16 tensor current"));
  // The text is the same: it does not say of which moment the format is.
  CHECK_THAT(
      refused({"precision.moment2=bf16"}),
      Catch::StartsWith("error: run/checkpoints/step-000005: 'moment2.") &&
          Catch::Contains(" is stored as fp32, and this run stores it as bf16; to continue"));
  expect_code(0, shop.folder(), command({"precision.moment1=bf16", "training.max_steps=6"}));
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
  const Outcome other = expect_code(
      4, shop.folder(), Workshop::command("bf16", "run", {"model.intermediate_size=96"}));
  CHECK_THAT(other.err,
             Catch::Contains("\n  model.intermediate_size: was 192, is 96\nto continue"));
}

TEST_CASE("a checkpoint of another model is refused with the keys that differ and a way on") {
  const Workshop shop;
  const auto command = [](const Words& more) {
    Words words = Workshop::command("te-delayed", "run", {"training.max_steps=5"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_code(0, shop.folder(), command({}));
  const Outcome wider = expect_code(
      4, shop.folder(), command({"model.hidden_size=128", "model.num_hidden_layers=3"}));
  CHECK_THAT(wider.err, Catch::Contains("step-000005 differs from this run:\n"
                                        "  model.hidden_size: was 64, is 128\n"
                                        "  model.num_hidden_layers: was 2, is 3\n"
                                        "to continue that run: change this back\n"
                                        "to start a new run: output_dir=ANOTHER_FOLDER\n") &&
                            !Catch::Contains("model.from"));  // whose weights do not fit
  const Outcome other = expect_code(
      4, shop.folder(),
      command({"model.preset=nanogpt-laptop", "data.seq_length=16", "data.tokenizer=char"}));
  CHECK_THAT(other.err, Catch::Contains("\n  and ") && !Catch::Contains("formats"));
  for (const std::string& line : lines_of(other.err)) {
    CHECK(line.size() < 200);
  }
  // The advice for a run of the same model, word by word.
  const Outcome longer = expect_code(4, shop.folder(), command({"data.seq_length=16"}));
  const size_t at = longer.err.find("output_dir=ANOTHER_FOLDER model= model.from=");
  REQUIRE(at != std::string::npos);
  const std::string from = longer.err.substr(at + 33, longer.err.find('\n', at) - at - 33);
  expect_code(0, shop.folder(), command({"data.seq_length=16", "output_dir=new", "model=", from}));
}

TEST_CASE("formats that differ within a plan are named, and no others") {
  const Workshop shop;
  expect_code(0, shop.folder(), Workshop::command("te-delayed", "run", {"training.max_steps=5"}));
  const Outcome other = expect_code(
      4, shop.folder(), Workshop::command("te-delayed", "run", {"precision.format=e4m3"}));
  CHECK_THAT(other.err,
             Catch::Contains("\n  dgrad dy: was e5m2 tensor delayed(7, max), is e4m3 ") &&
                 Catch::Contains("\n  wgrad dy: was e5m2 ") && !Catch::Contains("fprop") &&
                 !Catch::Contains(" w: ") && Catch::Contains("changed_plan=accept"));
  for (const std::string& line : lines_of(other.err)) {
    CHECK(line.size() < 300);
  }
}

TEST_CASE("a format of one moment of two is a difference") {
  const Workshop shop;
  const auto command = [](const Words& more) {
    Words words = Workshop::command("te-delayed", "run", more);
    words.push_back("training.max_steps=5");
    return words;
  };
  expect_code(0, shop.folder(), command({"precision.moment1=bf16", "precision.moment2=bf16"}));
  CHECK_THAT(expect_code(4, shop.folder(), command({"precision.moment1=bf16"})).err,
             Catch::Contains("differs from this run:\n  moment 2: was bf16, is fp32\nto continue"));
}

TEST_CASE("exchanged formats of the two moments are named, and accepted on request") {
  const auto& [first, second] = GENERATE(std::pair("bf16", "fp32"), std::pair("bf16", "fp16"));
  CAPTURE(first, second);
  const Workshop shop;
  const auto command = [](const std::string& moment1, const std::string& moment2) {
    return Workshop::command("te-delayed", "run",
                             {"precision.moment1=" + moment1, "precision.moment2=" + moment2});
  };
  Words words = command(first, second);
  words.push_back("training.max_steps=5");
  expect_code(0, shop.folder(), words);
  words = command(second, first);
  words.push_back("training.max_steps=6");
  const std::string stored = second == std::string("fp16") ? "fp16 tensor current" : second;
  const Outcome refused = expect_code(4, shop.folder(), words);
  CHECK_THAT(refused.err,
             Catch::Contains("step-000005 differs from this run:\n  moment 1: was bf16, is " +
                             stored + "\n  moment 2: was " + stored +
                             ", is bf16\nto continue that run: change "
                             "this back\nto continue it with this change: "
                             "checkpoint.changed_plan=accept\n"));
  words.push_back("checkpoint.changed_plan=accept");
  CHECK_THAT(expect_code(0, shop.folder(), words).err,
             Catch::Contains("with other formats than the checkpoint's (moment 1: was bf16, is " +
                             stored + "; moment 2: was " + stored + ", is bf16): weights and "));
}

TEST_CASE("the advice for several differences is enough for all of them") {
  const Workshop shop;
  const auto command = [](const char* plan, const Words& more) {
    Words words = Workshop::command(plan, "run", more);
    words.push_back("training.max_steps=10");
    return words;
  };
  expect_code(0, shop.folder(), command("bf16", {}));
  const std::string seed =
      expect_code(4, shop.folder(), command("te-delayed", {"training.seed=7"})).err;
  CHECK_THAT(seed, !Catch::Contains("=accept"));
  // The run has a later checkpoint than the one that is named.
  const std::string earlier = "checkpoint.resume=run/checkpoints/step-000005";
  const Outcome named =
      expect_code(4, shop.folder(), command("bf16", {earlier, "training.seed=7"}));
  CHECK_THAT(named.err, Catch::Contains("checkpoint.resume=auto output_dir=ANOTHER_FOLDER\n"));
  expect_code(0, shop.folder(),
              command("bf16", {"checkpoint.resume=auto", "output_dir=new", "training.seed=7"}));
  std::ofstream(shop.folder() / "text.txt", std::ios::app) << "more";
  const Outcome both = expect_code(4, shop.folder(), command("te-delayed", {}));
  const std::string accept = "checkpoint.changed_data=accept checkpoint.changed_plan=accept";
  CHECK_THAT(both.err, Catch::Contains("\nto continue it with this change: " + accept + "\n"));
  expect_code(0, shop.folder(),
              command("te-delayed", {"checkpoint.changed_data=accept",
                                     "checkpoint.changed_plan=accept", "training.max_steps=12"}));
}

}  // namespace
}  // namespace fp8train::test
