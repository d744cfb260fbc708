// A run that diverges in the middle of its data: it stops, or goes back and leaves the batches out.
// Data are read in order, so that what is put into the text comes at a known step.

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

constexpr size_t kStepTokens = 2 * 2 * 32;  // micro-batch, accumulation, sequence
constexpr int kSteps = 40;
constexpr size_t kTextBytes = 12000;

/// 0xFF and the like, of which nothing else in the text has any: as no model expects them.
std::string noise(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text.push_back(static_cast<char>('!' + (i * i * 7 + i * 3) % 90));
  }
  return text;
}

/// Data in order; `bad` replaces what the steps from `step` on read.
std::string text_with(const std::string& bad, size_t step) {
  std::string text;
  while (text.size() < kTextBytes) {
    text += "abcdefgh";
  }
  return text.replace((step - 1) * kStepTokens, bad.size(), bad);
}

struct Folder : TextFolder {
  /// Two steps of noise, 21 and 22.
  Folder() : TextFolder(text_with(noise(2 * kStepTokens), 21)) {}
};

Words command(const std::string& name, const Words& more = {}) {
  Words words = {"model.preset=toy",
                 "data.train=[{path: text.txt}]",
                 "data.val_fraction=0.1",
                 "data.shuffle=false",
                 "data.seq_length=32",
                 "training.max_steps=" + std::to_string(kSteps),
                 "training.micro_batch_size=2",
                 "training.global_batch_size=4",
                 "training.on_divergence=rollback",
                 "training.spike_threshold=6",
                 "training.spike_window=8",
                 "training.spike_steps=2",
                 "optimizer.lr=3e-3",
                 "optimizer.weight_decay=0",
                 "scheduler.warmup_steps=4",
                 "eval.interval=10",
                 "eval.batches=2",
                 "logging.interval=1",
                 "checkpoint.interval=5",
                 "threads=1",
                 "precision.plan=bf16",
                 "output_dir=" + name};
  for (const std::string& word : more) {
    const std::string key = word.substr(0, word.find('=') + 1);
    std::erase_if(words, [&](const std::string& old) { return old.starts_with(key); });
    words.push_back(word);
  }
  return words;
}

fs::path checkpoint(const fs::path& run, int step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06d", step);
  return run / "checkpoints" / name;
}

nlohmann::json state_of(const fs::path& checkpoint) {
  return nlohmann::json::parse(read_file(checkpoint / "state.json"));
}

/// Lines of metrics without the times and without those of saves, which come when they are over;
/// those with `key` only, where that is given.
std::vector<std::string> metrics_of(const fs::path& run, const char* key = nullptr) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    nlohmann::ordered_json object = nlohmann::ordered_json::parse(line);
    for (const char* figure :
         {"tokens_per_second", "seconds_per_step", "tflops", "mfu", "time", "memory_bytes"}) {
      object.erase(figure);
    }
    object.erase("slowest_rank");
    object.erase("wire_bytes_within_node");  // stage 3: fewer where an evaluation gathered already
    if (!object.contains("saved") && (key == nullptr || object.contains(key))) {
      found.push_back(object.dump());
    }
  }
  return found;
}

void check_same_end(const fs::path& a, const fs::path& b) {
  for (const auto& entry : fs::directory_iterator(checkpoint(a, kSteps))) {
    const fs::path name = entry.path().filename();
    INFO(name);
    CHECK(same_bytes(entry.path(), checkpoint(b, kSteps) / name));
  }
  CHECK(metrics_of(a) == metrics_of(b));
}

/// The bytes of a checkpoint's files with one of them changed, saved as a checkpoint of `step`.
void save_changed(const fs::path& from, const fs::path& root, int step, const std::string& file,
                  const std::function<void(std::string&)>& change) {
  CheckpointContents contents = {.run_id = verify_checkpoint(from).run_id, .files = {}};
  for (const FileRecord& record : verify_checkpoint(from).files) {
    std::string bytes = read_file(from / record.name);
    if (record.name == file) {
      change(bytes);
    }
    contents.files.push_back({record.name, {}, bytes});
  }
  save_checkpoint(root, step, contents);
}

/// The embedding of one byte becomes the largest fp32 number, which is infinite in bf16.
void poison_embedding(std::string& safetensors, unsigned char byte) {
  uint64_t header = 0;
  std::memcpy(&header, safetensors.data(), sizeof header);
  const nlohmann::json json = nlohmann::json::parse(safetensors.substr(8, header));
  const nlohmann::json& tensor = json.at("model.embed_tokens.weight");
  const auto columns = tensor.at("shape").at(1).get<size_t>();
  const size_t begin = 8 + header + tensor.at("data_offsets").at(0).get<size_t>();
  const float largest = 3.4e38F;
  for (size_t i = 0; i < columns; ++i) {
    std::memcpy(&safetensors[begin + (byte * columns + i) * sizeof largest], &largest,
                sizeof largest);
  }
}

/// A model folder, "poisoned", that makes a step with '~' in its batch a skipped one; steps 21 and
/// 22 have one.
class PoisonedFolder : public Folder {
 public:
  PoisonedFolder() {
    write_file(*this / "text.txt", text_with("~", 1));
    expect_code(
        0, path(),
        command("base", {"training.max_steps=1", "eval.interval=0", "scheduler.warmup_steps=0",
                         "model.tie_word_embeddings=false", "model.max_position_embeddings=64"}));
    save_changed(checkpoint(*this / "base", 1), *this / "poisoned", 1, "model.safetensors",
                 [](std::string& bytes) { poison_embedding(bytes, '~'); });
    write_file(*this / "text.txt", text_with("~" + std::string(kStepTokens, 'a') + "~", 21));
  }
  static Words command_from_it(const std::string& name, const Words& more = {}) {
    Words words = command(name, more);
    std::erase(words, "model.preset=toy");
    words.emplace_back("model.from=poisoned/step-000001");
    words.emplace_back("training.max_consecutive_skips=2");
    return words;
  }
};

void check_rolled_back_once(const fs::path& run, const std::string& kind) {
  const nlohmann::json summary = nlohmann::json::parse(read_file(run / "summary.json"));
  CHECK(summary.at("rollbacks") == 1);
  CHECK(summary.at("steps") == kSteps);
  const nlohmann::json rollbacks = state_of(checkpoint(run, kSteps)).at("rollbacks");
  REQUIRE(rollbacks.size() == 1);
  CHECK(rollbacks[0].at("to_step") == 20);
  CHECK(rollbacks[0].at("from_step") == 22);
  CHECK(rollbacks[0].at("first_sample") == 20 * 4);
  CHECK(rollbacks[0].at("end_sample") == 22 * 4);
  CHECK(rollbacks[0].at("kind") == kind);
  const std::vector<std::string> lines = metrics_of(run, "rollback");
  REQUIRE(lines.size() == 1);
  CHECK(nlohmann::json::parse(lines[0]).at("step") == 21);
  CHECK(metrics_of(run, "loss").size() == kSteps);
  // The two steps that are done anew have other batches.
  CHECK(state_of(checkpoint(run, kSteps)).at("sample_position") == (kSteps + 2) * 4);
}

#ifdef FP8TRAIN_MPIRUN
const Words kEnvironment = {"OMP_NUM_THREADS=1", "OMPI_MCA_mpi_yield_when_idle=1",
                            "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"};
const Words kTwoRanks = {
    FP8TRAIN_MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"};
#endif

}  // namespace

TEST_CASE("a spike of the loss stops the run with 5 and its checkpoints stay") {
  const Folder folder;
  const Outcome outcome =
      expect_code(5, folder.path(), command("run", {"training.on_divergence=stop"}));
  CHECK_THAT(outcome.err, Contains("2 steps in a row, from step 21 on") &&
                              Contains("standard deviations") &&
                              Contains("The checkpoint of step 20 is intact"));
  CHECK(fs::exists(checkpoint(folder / "run", 20)));
  // Off by default.
  expect_code(0, folder.path(), command("off", {"training.spike_threshold=0"}));
}

TEST_CASE("a spike of the loss: back to before it, without its batches") {
  const Folder folder;
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
  const Folder folder;
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
  const Folder folder;
  expect_code(0, folder.path(), command("run", {"logging.interval=1000"}));
  const nlohmann::json rollbacks = state_of(checkpoint(folder / "run", kSteps)).at("rollbacks");
  REQUIRE(rollbacks.size() == 1);
  CHECK(rollbacks[0].at("from_step") == 25);
  CHECK(rollbacks[0].at("to_step") == 20);
  CHECK(rollbacks[0].at("end_sample") == 25 * 4);
}

TEST_CASE("no checkpoint is saved while losses are high") {
  const Folder folder;
  // The save is due in the first step of the two.
  const Outcome outcome =
      expect_code(0, folder.path(), command("run", {"checkpoint.interval=7", "eval.interval=0"}));
  CHECK_THAT(outcome.err, Contains("step 21 is not saved: its loss is high") &&
                              Contains("goes back to step 14"));
}

TEST_CASE("a save that is put off is not forgotten by a stop") {
  const Folder folder;
  write_file(folder / "text.txt", text_with(noise(kTextBytes), 21).substr(0, kTextBytes));
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
  const Folder folder;
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
  const long killed_at = GENERATE(20, 21, 24, 27, 33);
  CAPTURE(killed_at);
  const Folder folder;
  expect_code(0, folder.path(), command("whole"));
  {
    Process process(folder.path(), command("broken"));
    const bool reached =
        process.wait_until([&] { return last_logged_step(folder / "broken") >= killed_at; });
    REQUIRE(reached);
    process.send(SIGKILL);
    REQUIRE(process.wait().code == 128 + SIGKILL);
  }
  expect_code(0, folder.path(), command("broken"));
  check_rolled_back_once(folder / "broken", "loss_spike");
  check_same_end(folder / "whole", folder / "broken");
}

TEST_CASE("a stopped run goes back to where one goes that was not stopped") {
  const Folder folder;
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
  const Folder folder;
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

TEST_CASE("a run that diverges before its first checkpoint says so") {
  const Folder folder;
  const Outcome outcome = expect_code(
      5, folder.path(),
      command("run", {"optimizer.lr=1e30", "scheduler.type=constant", "checkpoint.interval=0"}));
  CHECK_THAT(outcome.err, Contains("no usable checkpoint") && Contains("checkpoint.interval"));
}

#ifdef FP8TRAIN_MPIRUN
TEST_CASE("ranks go back together, and a killed run of ranks ends with the same bits") {
  const std::string stage = GENERATE("0", "3");
  CAPTURE(stage);
  const Folder folder;
  const auto words = [&](const std::string& name) {
    return command(name, {"parallelism.zero_stage=" + stage, "comm.timeout=60", "device=cpu"});
  };
  const auto finish = [&](const std::string& name) {
    const Outcome outcome = Process(folder.path(), words(name), kEnvironment, kTwoRanks).wait();
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    check_rolled_back_once(folder / name, "loss_spike");
  };
  finish("whole");
  {
    Process process(folder.path(), words("broken"), kEnvironment, kTwoRanks);
    const bool reached =
        process.wait_until([&] { return last_logged_step(folder / "broken") >= 23; });
    REQUIRE(reached);
    process.send(SIGKILL);
    process.wait();
  }
  // Ranks whose mpirun is gone end by themselves, and with them the lock.
  REQUIRE(Process(folder.path(), words("unused"), kEnvironment, kTwoRanks).wait().code == 0);
  fs::remove(folder / "broken" / "run.lock");
  finish("broken");
  check_same_end(folder / "whole", folder / "broken");
}

TEST_CASE("ranks agree that a weight is not finite, which the first one finds when it saves") {
  const std::string stage = GENERATE("0", "1");
  CAPTURE(stage);
  const Folder folder;
  const auto run = [&](const Words& more, int code) {
    Words words = command("run", more);
    words.push_back("parallelism.zero_stage=" + stage);
    words.emplace_back("comm.timeout=20");
    words.emplace_back("device=cpu");
    const Outcome outcome = Process(folder.path(), words, kEnvironment, kTwoRanks).wait();
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == code);
    return outcome.err;
  };
  run({"training.max_steps=5"}, 0);
  // Weights overflow at once.
  const std::string err = run({"optimizer.lr=1e39", "scheduler.type=constant",
                               "checkpoint.interval=1", "training.max_rollbacks=1"},
                              5);
  CHECK_THAT(err, Contains("nothing of this step is written") && Contains("goes back to step 5") &&
                      Contains("went back to older checkpoints 1 times already"));
}
#endif

}  // namespace fp8train::test
