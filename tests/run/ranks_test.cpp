// The program on several ranks, started by mpirun.

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "program.h"
#include "rank_runs.h"
#include "support/save_checkpoint.h"
#include "timeline_checks.h"

namespace fp8train::test {
namespace {

std::vector<double> numbers(const fs::path& run, const char* key) {
  std::vector<double> found;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains(key)) {
      found.push_back(json.at(key).get<double>());
    }
  }
  return found;
}

/// The lines of train.log but for warnings, which have a time there and are on standard error as
/// well. A slow disk causes some.
std::vector<std::string> logged_progress(const fs::path& run, const std::string& err) {
  const std::string mark = " warning ";
  std::vector<std::string> lines = lines_of(read_file(run / "train.log"));
  std::erase_if(lines, [&](const std::string& line) {
    const size_t begin = line.find(mark);
    return begin == std::string("2000-01-01T00:00:00").size() &&
           err.find("warning: " + line.substr(begin + mark.size())) != std::string::npos;
  });
  return lines;
}

double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] / b[i] - 1));
  }
  return largest;
}

}  // namespace

TEST_CASE("one, two and four ranks train alike at one global batch") {
  const TextFolder folder;
  run(folder, 1, command("fp32", "one"));
  const std::vector<double> losses = numbers(folder / "one", "loss");
  const std::vector<double> val_losses = numbers(folder / "one", "val_loss");
  CHECK(losses.size() == kSteps);
  CHECK(val_losses.size() == 3);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const std::string name = "ranks" + std::to_string(ranks);
    const Outcome outcome = run(folder, ranks, command("fp32", name));
    // fp32 sums in another order.
    CHECK(largest_relative(numbers(folder / name, "loss"), losses) < 1e-6);
    CHECK(largest_relative(numbers(folder / name, "val_loss"), val_losses) < 1e-6);
    CHECK(outcome.out.find("(" + std::to_string(ranks) + " ranks x ") != std::string::npos);
    // One rank prints.
    CHECK(lines_of(outcome.out) == logged_progress(folder / name, outcome.err));
  }
}

TEST_CASE("what ranks share changes no bit of a run") {
  const auto& [plan, ranks] =
      GENERATE(std::pair("bf16", 4), std::pair("te-delayed", 2), std::pair("msamp-o1", 3));
  CAPTURE(plan, ranks);
  const std::string batch = "training.global_batch_size=" + std::to_string(ranks == 3 ? 12 : 8);
  const TextFolder folder;
  run(folder, ranks, command(plan, "zero0", {batch}));
  const fs::path final = fs::path("checkpoints") / "step-000024" / "model.safetensors";
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    const std::string name = "zero" + std::to_string(stage);
    run(folder, ranks,
        command(plan, name, {batch, "parallelism.zero_stage=" + std::to_string(stage)}));
    CHECK(numbers(folder / name, "loss") == numbers(folder / "zero0", "loss"));
    CHECK(numbers(folder / name, "val_loss") == numbers(folder / "zero0", "val_loss"));
    CHECK(same_bytes(folder / name / final, folder / "zero0" / final));
    CHECK(same_bytes(folder / name / "samples" / "step-000016.txt",
                     folder / "zero0" / "samples" / "step-000016.txt"));
  }
}

TEST_CASE("a checkpoint of which one rank reads other bytes is passed over on all ranks") {
  const TextFolder folder;
  const Words keys = {"parallelism.zero_stage=1", "checkpoint.keep_last=3"};
  run(folder, 2, command("te-delayed", "whole", keys));
  for (const auto& [rank, file] :
       {std::pair("1", "optimizer-00002-of-00002.safetensors"),
        std::pair("0", "optimizer-00001-of-00002.safetensors"), std::pair("1", "model.safetensors"),
        std::pair("1", "scaling.safetensors"), std::pair("1", "config.json"),
        std::pair("0", "tokenizer.json")}) {
    CAPTURE(rank, file);
    const std::string name = std::string("rank") + rank + file;
    fs::copy(folder / "whole", folder / name, fs::copy_options::recursive);
    fs::remove_all(folder / name / "checkpoints" / "step-000024");
    const Outcome outcome =
        run(folder, 2, command("te-delayed", name, keys), 0,
            {std::string("LD_PRELOAD=") + FP8TRAIN_FILE_FAULTS,
             "FP8TRAIN_FAULT_FOLDER=" + (folder / name).string(), "FP8TRAIN_FAULT_KIND=FLIP",
             std::string("FP8TRAIN_FAULT_RANK=") + rank,
             std::string("FP8TRAIN_FAULT_EVERY=read step-000016/") + file});
    CHECK_THAT(outcome.out, Catch::Contains("checkpoints/step-000008 at step 8"));
    CHECK_THAT(outcome.err, Catch::Contains("skipped checkpoint step-000016: ") &&
                                Catch::Contains(std::string(file) + ": damaged"));
    if (std::string(rank) == "1") {
      CHECK_THAT(outcome.err, Catch::Contains("rank 1: "));
    }
    const fs::path final = fs::path("checkpoints") / "step-000024" / "model.safetensors";
    CHECK(same_bytes(folder / name / final, folder / "whole" / final));
  }
}

TEST_CASE("a checkpoint that ranks have written in parts goes on in every layout") {
  const TextFolder folder;
  run(folder, 4, command("fp32", "zero3", {"parallelism.zero_stage=3"}));
  const fs::path final = fs::path("checkpoints") / "step-000024" / "model.safetensors";
  const std::vector<double> losses = numbers(folder / "zero3", "loss");
  struct Other {
    int ranks, stage, sharing;
  };
  for (const auto& [ranks, stage, sharing] :
       {Other{2, 1, 0}, Other{4, 2, 0}, Other{4, 0, 0}, Other{4, 3, 2}, Other{1, 0, 0}}) {
    CAPTURE(ranks, stage, sharing);
    const std::string name = "on" + std::to_string(100 * ranks + 10 * stage + sharing);
    fs::copy(folder / "zero3", folder / name, fs::copy_options::recursive);
    fs::remove_all(folder / name / "checkpoints" / "step-000016");
    fs::remove_all(folder / name / "checkpoints" / "step-000024");
    run(folder, ranks,
        command("fp32", name,
                {"parallelism.zero_stage=" + std::to_string(stage),
                 "parallelism.shard_ranks=" + std::to_string(sharing)}));
    CHECK(same_bytes(folder / name / final, folder / "zero3" / final) == (ranks == 4));
    // Other numbers of ranks sum in another order.
    CHECK(largest_relative(numbers(folder / name, "loss"), losses) < 1e-6);
  }
}

namespace {

/// Makes a checkpoint of another whose weights are in several files, as those of a large model.
fs::path divide_weights(const TextFolder& folder, const fs::path& from, const fs::path& root) {
  expect_code(0, folder.path(),
              {"export", from.string(), "--out", "hf", "--max-shard-size", "100KB"});
  CheckpointContents contents = {.run_id = verify_checkpoint(from).run_id, .files = {}};
  for (const auto& [path, is_weights] : {std::pair(from, false), std::pair(folder / "hf", true)}) {
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model") == is_weights && name != "MANIFEST.json") {
        contents.files.push_back({name, {}, read_file(entry.path())});
      }
    }
  }
  fs::remove_all(folder / "hf");
  return save_checkpoint(root, 16, contents);
}

}  // namespace

TEST_CASE("a checkpoint with several files of weights goes on in every layout to the same bits") {
  const TextFolder folder;
  run(folder, 2, command("bf16", "whole", {"checkpoint.keep_last=3"}));
  const fs::path final = fs::path("checkpoints") / "step-000024" / "model.safetensors";
  for (const std::string stage : {"0", "1", "3"}) {
    CAPTURE(stage);
    const fs::path divided = divide_weights(folder, folder / "whole/checkpoints/step-000016",
                                            folder / stage / "checkpoints");
    const Words words =
        command("bf16", stage,
                {"parallelism.zero_stage=" + stage, "checkpoint.resume=" + divided.string()});
    CHECK_THAT(run(folder, 2, words).out, Catch::Contains("step-000016 at step 16"));
    CHECK(same_bytes(folder / stage / final, folder / "whole" / final));
    const std::string name = "model-00002-of-00006.safetensors";
    std::string bytes = read_file(divided / name);
    bytes[bytes.size() / 2] ^= 1;
    write_file(divided / name, bytes);
    CHECK_THAT(run(folder, 2, words, 4).err, Catch::Contains(name + ": damaged"));
  }
}

TEST_CASE("a note on the model's folder is one line of all ranks, and in the log") {
  const TextFolder folder;
  run(folder, 1,
      command("bf16", "first",
              {"training.max_steps=1", "model.tie_word_embeddings=false", "sample.interval=0",
               "eval.interval=0"}));
  expect_code(0, folder.path(), {"export", "first", "--out", "model"});
  std::string config = read_file(folder / "model/config.json");
  const std::string untied = "\"tie_word_embeddings\": false";
  REQUIRE(config.find(untied) != std::string::npos);
  config.replace(config.find(untied), untied.size(), "\"tie_word_embeddings\": true");
  write_file(folder / "model/config.json", config);
  Words words =
      command("bf16", "second",
              {"training.max_steps=1", "model.from=model", "sample.interval=0", "eval.interval=0"});
  std::erase(words, "model.preset=toy");
  const Outcome outcome = run(folder, 2, words);
  const std::string note = "model/config.json: 'tie_word_embeddings' is true, but lm_head.weight";
  const size_t at = outcome.err.find(note);
  REQUIRE(at != std::string::npos);
  CHECK(outcome.err.find(note, at + 1) == std::string::npos);
  CHECK_THAT(read_file(folder / "second/train.log"), Catch::Contains(note));
}

TEST_CASE("the first rank says what is wrong with a configuration") {
  const TextFolder folder;
  const Outcome outcome = run(folder, 2, {"model.preset=toy", "trainin.x=1"}, 2);
  const size_t first = outcome.err.find("trainin.x: unknown key");
  REQUIRE(first != std::string::npos);
  CHECK(outcome.err.find("trainin.x", first + 1) == std::string::npos);
}

TEST_CASE("processes of torchrun do not train the whole run each") {
  const TextFolder folder;
  const Words words = {"model.preset=toy", "data.train=text.txt",  "data.seq_length=32",
                       "device=cpu",       "training.max_steps=1", "output_dir=run"};
  const Words variables = {"WORLD_SIZE=8", "LOCAL_RANK=3", "TORCHELASTIC_RUN_ID=x"};
  const auto started = [&](const std::string& rank, const Words& more = {}) {
    Words all = words, environment = variables;
    all.insert(all.end(), more.begin(), more.end());
    environment.push_back("RANK=" + rank);
    return run_program(folder.path(), all, environment);
  };
  const Outcome first = started("0");
  CHECK(first.code == 2);
  CHECK_THAT(first.err,
             Catch::StartsWith("error: torchrun, or a launcher like it, has started 8 processes"));
  CHECK(lines_of(first.err).size() == 1);
  CHECK_FALSE(fs::exists(folder / "run" / "metrics.jsonl"));
  CHECK(started("3").code == 2);
  CHECK(started("0", {"comm.backend=self"}).code == 0);
}

TEST_CASE("a global batch that ranks cannot share: which setting makes it divisible") {
  const TextFolder folder;
  const auto error_of = [&](const char* global, const char* micro, const char* ranks) {
    return expect_code(2, folder.path(),
                       {"check", "model.preset=toy", "data.train=[{path: text.txt}]",
                        "data.seq_length=16", "training.max_steps=2", "output_dir=out",
                        std::string("training.global_batch_size=") + global,
                        std::string("training.micro_batch_size=") + micro, "--world-size", ranks})
        .err;
  };
  CHECK_THAT(error_of("8", "8", "2"),
             Catch::Contains("8 sequences are not a multiple of 2 ranks x "
                             "training.micro_batch_size 8; set training.micro_batch_size: 4\n"));
  CHECK_THAT(error_of("18", "6", "2"), Catch::Contains("; set training.micro_batch_size: 3\n"));
  CHECK_THAT(error_of("8", "8", "3"), Catch::Contains("; set training.global_batch_size: 24\n"));
}

TEST_CASE("a run of two ranks that was stopped goes on to the same bits, and on one rank too") {
  const auto& [plan, reduces] =
      GENERATE(std::pair("msamp-o2", false), std::pair("fp8-lm", false),
               std::pair("te-delayed", true), std::pair("te-delayed", false));
  CAPTURE(plan, reduces);
  constexpr long kLong = 60;  // no machine finishes before it is stopped
  const TextFolder folder;
  const auto words = [plan = plan, reduces = reduces](const std::string& name) {
    return command(plan, name,
                   {std::string("precision.reduce_amax=") + (reduces ? "true" : "false"),
                    "training.max_steps=" + std::to_string(kLong)});
  };
  run(folder, 2, words("whole"));
  Process stopped(folder.path(), words("stopped"), kEnvironment, mpirun(2));
  const bool began = stopped.wait_until([&] { return last_logged_step(folder / "stopped") >= 3; });
  REQUIRE(began);
  stopped.send(SIGUSR1);  // mpirun passes it on
  const Outcome outcome = stopped.wait();
  CAPTURE(outcome.out, outcome.err);
  CHECK(outcome.code == 75);
  REQUIRE(last_logged_step(folder / "stopped") < kLong);
  fs::copy(folder / "stopped", folder / "alone", fs::copy_options::recursive);

  run(folder, 2, words("stopped"));
  const fs::path final = fs::path("checkpoints") / "step-000060";
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "scaling.safetensors"}) {
    CAPTURE(file);
    CHECK(same_bytes(folder / "stopped" / final / file, folder / "whole" / final / file));
  }
  const Outcome resumed = run(folder, 1, words("alone"));
  const bool says =
      resumed.err.find("scales of x and dy, which 2 ranks have saved") != std::string::npos;
  CHECK(says != reduces);
  const std::vector<double> alone = numbers(folder / "alone", "loss");
  CHECK(alone.size() == kLong);
  // One rank rounds fewer contributions, and from the first other code on two runs part by chance.
  CHECK(largest_relative(alone, numbers(folder / "whole", "loss")) < 2e-2);
}

TEST_CASE(
    "parts that ranks write while training goes on have the bytes of those that they waited for") {
  const auto& [plan, stage] = GENERATE(std::pair("fp8-lm", 2), std::pair("te-delayed", 0));
  CAPTURE(plan, stage);
  const TextFolder folder;
  for (const char* async : {"true", "false"}) {
    run(folder, 2,
        command(plan, async,
                {"parallelism.zero_stage=" + std::to_string(stage),
                 std::string("checkpoint.async=") + async, "checkpoint.interval=4",
                 "checkpoint.keep_last=100", "training.max_steps=20"}));
    CHECK(numbers(folder / async, "save_stall_seconds").size() == 5);
  }
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "true/checkpoints")) {
    if (entry.is_regular_file()) {
      const fs::path name = fs::relative(entry.path(), folder / "true");
      CAPTURE(name);
      CHECK(same_bytes(entry.path(), folder / "false" / name));
      ++files;
    }
  }
  CHECK(files == 5U * (stage == 0 ? 8 : 9) + 1);
}

TEST_CASE("a timeline of two ranks has what they exchange") {
  const int stage = GENERATE(0, 1, 3);
  CAPTURE(stage);
  const TextFolder folder;
  const Outcome outcome =
      run(folder, 2,
          {"bench", "step", "--preset", "toy", "--device", "cpu", "--micro-batch-size", "2",
           "--seq-length", "16", "--seconds", "0.01", "--zero-stage", std::to_string(stage),
           "--json", "--timeline", "timeline.json"});
  const TimelineContent content =
      check_timeline(nlohmann::json::parse(read_file(folder / "timeline.json")));
  CHECK(content.ranks == std::set<int>{0, 1});
  CHECK(content.spans.at("step") == 10);
  // Every exchange has a message to all for each of its pieces and, in stage 0, is gathered.
  CHECK(content.flights.at("exchange") >= 10);
  CHECK(content.flights.at("all_to_all") >= content.flights.at("exchange"));
  CHECK(content.flights.count("gather") == (stage == 0 ? 0 : 1));
  CHECK(content.flights.at("all_gather") >= content.flights.at("exchange") / (stage + 1));
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  CHECK(report.at("exchange_seconds").get<double>() > 0);
  for (const char* share : {"exchange_in_backward", "messages_in_backward"}) {
    CAPTURE(share);
    CHECK(report.at(share).get<double>() >= 0);
    CHECK(report.at(share).get<double>() <= 1);
  }
}

TEST_CASE("an error that all ranks have is reported once, and ends the run with its code") {
  const TextFolder folder;
  const Outcome outcome =
      run(folder, 2, command("bf16", "bad", {"data.train=[{path: missing.txt}]"}), 3);
  size_t count = 0;
  for (const std::string& line : lines_of(outcome.err)) {
    count += line.starts_with("error:") ? 1 : 0;
  }
  CHECK(count == 1);
}

}  // namespace fp8train::test
