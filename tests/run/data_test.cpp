// A run that goes on notices that its data is not what it was; data that is not what it seems to be
// is refused.

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/token_file.h"
#include "io/checkpoint/checkpoint.h"
#include "program.h"
#include "support/save_checkpoint.h"
#include "support/token_shard.h"

namespace fp8train::test {
namespace {

constexpr int64_t kVocabulary = 300;
constexpr size_t kTokens = 500'000;

std::vector<int32_t> some_tokens(size_t count) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<int32_t>(i * 7919 % 293);
  }
  return tokens;
}

/// Writes `bytes` over a part of the file and sets its modification time back.
void overwrite_silently(const fs::path& path, uint64_t at, const std::string& bytes) {
  struct stat before = {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(file.good());
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

Words tokens_command(const Words& more = {}) {
  Words words = {"model.preset=toy",
                 "model.vocab_size=" + std::to_string(kVocabulary),
                 "data.train=[{path: a.bin}, {path: b.bin}]",
                 "data.tokenizer=none",
                 "sample.prompts=[]",
                 "data.seq_length=32",
                 "training.max_steps=4",
                 "training.micro_batch_size=2",
                 "threads=1",
                 "precision.plan=bf16",
                 "output_dir=run"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("four of a hundred ids overwritten in place: the run does not go on") {
  const TempDir folder;
  const auto tokens = some_tokens(kTokens);
  for (const char* name : {"a.bin", "b.bin"}) {
    write_shard(folder / name, tokens, kVocabulary);
  }
  expect_code(0, folder.path(), tokens_command());
  const Words longer = tokens_command({"training.max_steps=6"});
  const std::string whole = read_file(folder / "b.bin");
  // Between two of the 16 samples that a fingerprint of the content looked at.
  const size_t changed = kTokens / 25 * sizeof(uint16_t);
  const size_t at = kLlmcHeaderBytes + kTokens / 100 * sizeof(uint16_t);

  SECTION("refused, with the file's name, until it is as before or accepted") {
    overwrite_silently(folder / "b.bin", at, std::string(changed, '\x01'));
    const Outcome refused = expect_code(4, folder.path(), longer);
    CHECK_THAT(refused.err, Catch::Contains("b.bin has other content of the same size") &&
                                Catch::Contains("checkpoint.changed_data=accept") &&
                                !Catch::Contains("a.bin"));
    overwrite_silently(folder / "b.bin", at, whole.substr(at, changed));
    expect_code(0, folder.path(), longer);
    overwrite_silently(folder / "b.bin", at, std::string(changed, '\x01'));
    const Outcome accepted =
        expect_code(0, folder.path(),
                    tokens_command({"training.max_steps=8", "checkpoint.changed_data=accept"}));
    CHECK_THAT(accepted.err, Catch::Contains("b.bin has other content"));
    // What it saves is of the data as it is now.
    expect_code(0, folder.path(), tokens_command({"training.max_steps=9"}));
  }
  SECTION("written again with the same content, or moved") {
    write_file(folder / "b.bin", whole);
    expect_code(0, folder.path(), longer);
    fs::rename(folder / "b.bin", folder / "c.bin");
    Words moved = tokens_command({"training.max_steps=8"});
    moved[2] = "data.train=[{path: a.bin}, {path: c.bin}]";
    expect_code(0, folder.path(), moved);
  }
  SECTION("a file more, and a longer one") {
    write_file(folder / "c.bin", whole);
    Words more = longer;
    more[2] = "data.train=[{path: a.bin}, {path: b.bin}, {path: c.bin}]";
    CHECK_THAT(expect_code(4, folder.path(), more).err, Catch::Contains("c.bin was added"));
    write_shard(folder / "b.bin", some_tokens(kTokens + 1), kVocabulary);
    CHECK_THAT(expect_code(4, folder.path(), longer).err,
               Catch::Contains("b.bin had 1001024 bytes and has 1001026"));
  }
  SECTION("a checkpoint of an earlier version is compared by its samples") {
    const fs::path root = folder / "run" / "checkpoints";
    const CheckpointManifest manifest = verify_checkpoint(root / "step-000004");
    CheckpointContents contents = {.run_id = manifest.run_id, .files = {}};
    for (const FileRecord& record : manifest.files) {
      std::string bytes = read_file(root / "step-000004" / record.name);
      if (record.name == "state.json") {
        auto state = nlohmann::ordered_json::parse(bytes);
        REQUIRE(state.erase("data_files") == 1);
        bytes = state.dump(1) + "\n";
      }
      contents.files.push_back({record.name, {}, bytes});
    }
    save_checkpoint(root, 4, contents);
    overwrite_silently(folder / "b.bin", kLlmcHeaderBytes, std::string(64, '\x01'));
    CHECK_THAT(expect_code(4, folder.path(), longer).err, Catch::Contains("fingerprint"));
    overwrite_silently(folder / "b.bin", kLlmcHeaderBytes, whole.substr(kLlmcHeaderBytes, 64));
    expect_code(0, folder.path(), longer);
  }
}

TEST_CASE("text that was changed in the middle: the run does not go on") {
  const std::string tokenizer = GENERATE("char", "byte");
  const TempDir folder;
  const std::string text = small_text(200000);
  write_file(folder / "text.txt", text);
  const Words command = {"model.preset=toy",
                         "data.train=[{path: text.txt}]",
                         "data.seq_length=32",
                         "training.micro_batch_size=2",
                         "threads=1",
                         "precision.plan=bf16",
                         "data.tokenizer=" + tokenizer,
                         "output_dir=run"};
  const auto with = [&](const std::string& word) {
    Words words = command;
    words.push_back(word);
    return words;
  };
  expect_code(0, folder.path(), with("training.max_steps=2"));
  std::string other = text.substr(3000, 8000);
  std::reverse(other.begin(), other.end());
  overwrite_silently(folder / "text.txt", 3000, other);
  CHECK_THAT(expect_code(4, folder.path(), with("training.max_steps=3")).err,
             Catch::Contains("text.txt has other content of the same size"));
  write_file(folder / "text.txt", text);
  expect_code(0, folder.path(), with("training.max_steps=3"));
}

TEST_CASE("data too large to be read before the start is compared while the run goes on") {
  const TempDir folder;
  constexpr uint64_t kBytes = uint64_t{3} << 30;  // sparse: it takes no space
  write_file(folder / "large.bin", "");
  fs::resize_file(folder / "large.bin", kBytes);
  const Words command = {"model.preset=toy",
                         "model.vocab_size=300",
                         "data.train=[{path: large.bin, format: raw_u16}]",
                         "data.tokenizer=none",
                         "sample.prompts=[]",
                         "data.seq_length=32",
                         "training.micro_batch_size=2",
                         "threads=1",
                         "precision.plan=bf16",
                         "output_dir=run",
                         "training.max_steps=1000000",
                         "checkpoint.interval=0"};
  const auto hashed = [&] { return fs::exists(folder / "run" / "data_hashes.json"); };
  const auto run_until_hashed = [&] {
    Process process(folder.path(), command);
    REQUIRE(process.wait_until([&] { return hashed() && last_logged_step(folder / "run") > 0; }));
    process.send(SIGTERM);
    return process.wait();
  };
  const Outcome first = run_until_hashed();
  CHECK(first.code == 75);
  CHECK_THAT(first.out, Catch::Contains("of them while the run continues"));
  overwrite_silently(folder / "large.bin", kBytes / 30, std::string(1000, '\x01'));
  const Outcome refused = expect_code(4, folder.path(), command);
  CHECK_THAT(refused.err, Catch::Contains("large.bin has other content of the same size"));
  overwrite_silently(folder / "large.bin", kBytes / 30, std::string(1000, '\0'));
  fs::remove(folder / "run" / "data_hashes.json");
  CHECK(run_until_hashed().code == 75);
}

TEST_CASE("all that differs from the checkpoint is named at once") {
  const TempDir folder;
  write_shard(folder / "a.bin", some_tokens(kTokens), kVocabulary);
  write_shard(folder / "b.bin", some_tokens(kTokens), kVocabulary);
  expect_code(0, folder.path(), tokens_command());
  overwrite_silently(folder / "a.bin", kLlmcHeaderBytes + 30000, std::string(2000, '\x01'));
  const Outcome refused =
      expect_code(4, folder.path(),
                  tokens_command({"training.max_steps=6", "training.seed=2", "data.shuffle=false",
                                  "precision.plan=fp32", "data.seq_length=16"}));
  CHECK_THAT(refused.err, Catch::Contains("training.seed: was 1, is 2") &&
                              Catch::Contains("data.shuffle: was true, is false") &&
                              Catch::Contains("precision plan: was bf16, is fp32") &&
                              Catch::Contains("data.seq_length: was 32, is 16") &&
                              Catch::Contains("a.bin has other content"));
}

TEST_CASE("check reads every id") {
  const TempDir folder;
  std::vector<int32_t> tokens = some_tokens(kTokens);
  write_shard(folder / "a.bin", tokens, kVocabulary);
  tokens[kTokens / 7] = kVocabulary;
  write_shard(folder / "b.bin", tokens, kVocabulary + 1);
  Words command = tokens_command();
  command.insert(command.begin(), "check");
  const Outcome refused = expect_code(3, folder.path(), command);
  CHECK_THAT(refused.err, Catch::Contains("b.bin") && Catch::Contains("token 300 at offset 71428"));
  command.push_back("--no-scan");
  expect_code(0, folder.path(), command);
  write_shard(folder / "b.bin", some_tokens(kTokens), kVocabulary);
  command.pop_back();
  CHECK_THAT(expect_code(0, folder.path(), command).out, Catch::Contains("scan    1.00M training"));
}

TEST_CASE("a warm-up longer than the run is a warning, and the run takes place") {
  const TempDir folder;
  write_shard(folder / "a.bin", some_tokens(kTokens), kVocabulary);
  write_shard(folder / "b.bin", some_tokens(kTokens), kVocabulary);
  const Outcome trial =
      expect_code(0, folder.path(), tokens_command({"scheduler.warmup_steps=2000"}));
  CHECK_THAT(trial.err, Catch::Contains("the warm-up of 2000 steps does not end"));
  const Outcome decay = expect_code(
      0, folder.path(),
      tokens_command({"output_dir=wsd", "scheduler.type=wsd", "scheduler.decay_steps=400"}));
  CHECK_THAT(decay.err, Catch::Contains("together are longer than the run's 4 steps"));
}

TEST_CASE("control characters in the name of a file do not reach the terminal") {
  const TempDir dir;
  const std::string name = "a\x1b[31m.txt";
  write_file(dir / name, "some text");
  const auto check = [](const Outcome& outcome) {
    CAPTURE(outcome.out, outcome.err);
    CHECK(outcome.out.find('\x1b') == std::string::npos);
    CHECK(outcome.err.find('\x1b') == std::string::npos);
    CHECK_THAT(outcome.out + outcome.err, Catch::Contains("\\x1b[31m"));
  };
  check(expect_code(0, dir.path(), {"data", "inspect", "."}));
  const fs::path model = dir / "m\x1b[31m";
  fs::copy(fs::path(FP8TRAIN_GOLDEN_DIR) / "families/qwen3", model);
  std::string config = read_file(model / "config.json");
  config.replace(config.find("0.0,"), 4, "0.1,");  // attention_dropout, which a note names
  fs::permissions(model / "config.json", fs::perms::owner_write, fs::perm_options::add);
  write_file(model / "config.json", config);
  check(expect_code(0, dir.path(), {"export", model.string(), "--to", "hf", "--out", "out"}));
}

TEST_CASE("dialogues for validation are looked at before the run") {
  const TempDir dir;
  const std::string line = R"({"prompt": "a", "completion": "b"})"
                           "\n";
  write_file(dir / "c.jsonl", line + line);
  write_file(dir / "long.jsonl", R"({"prompt": ")" + std::string(900, 'q') +
                                     R"(", "completion": "b"})"
                                     "\n");
  for (const char* command : {"check", "train"}) {
    const Outcome outcome =
        expect_code(3, dir.path(),
                    {command, "model.preset=toy", "data.train=c.jsonl", "data.val=long.jsonl",
                     "data.tokenizer=" + (fs::path(FP8TRAIN_GOLDEN_DIR) / "chat/chatml").string(),
                     "data.seq_length=32", "training.max_steps=2", "device=cpu", "threads=1",
                     "precision.plan=bf16", "output_dir=run"});
    CHECK_THAT(outcome.err,
               Catch::Contains("validation data (long.jsonl): no document has a target within "
                               "data.seq_length"));
  }
}

}  // namespace
}  // namespace fp8train::test
