// What goes wrong outside of the program ends in one message and the documented exit code.

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

/// A folder with a text, and the command of a short run in it.
class Bench {
 public:
  Bench() { write_file(folder_ / "text.txt", small_text(8000)); }

  const fs::path& path() const { return folder_.path(); }
  fs::path operator/(const std::string& name) const { return folder_ / name; }
  fs::path checkpoint(const char* name) const { return folder_ / "out" / "checkpoints" / name; }

  /// Later keys win, so `more` changes what is before.
  static Words command(const Words& more = {}) {
    Words words = {"train",
                   "model.preset=toy",
                   "data.train=[{path: text.txt}]",
                   "data.seq_length=16",
                   "training.max_steps=6",
                   "training.micro_batch_size=2",
                   "checkpoint.interval=2",
                   "logging.interval=1",
                   "threads=1",
                   "output_dir=out"};
    for (const std::string& word : more) {
      const std::string key = word.substr(0, word.find('=') + 1);
      std::erase_if(words, [&](const std::string& old) { return old.starts_with(key); });
      words.push_back(word);
    }
    return words;
  }

  std::string fails(int code, const Words& more) const {
    const Outcome outcome = expect_code(code, path(), command(more));
    CHECK_THAT(outcome.err, Contains("error:"));
    CHECK_THAT(outcome.err, !Contains("internal"));
    return outcome.err;
  }

 private:
  TempDir folder_;
};

/// An llm.c token file with these ids.
std::string token_file(const std::vector<uint16_t>& ids) {
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<int32_t>(ids.size());
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  bytes.append(reinterpret_cast<const char*>(ids.data()), 2 * ids.size());
  return bytes;
}

TEST_CASE("keys that do not exist: all of them, with file and line") {
  const Bench bench;
  write_file(bench / "run.yaml",
             "model: {preset: toy}\n"
             "data: {train: [{path: text.txt}], seq_length: 16}\n"
             "training: {max_steps: 4, micro_batch_sizes: 2}\n"
             "optimizer: {lerning_rate: 1e-3}\n");
  const Outcome outcome = expect_code(2, bench.path(), {"run.yaml"});
  CHECK_THAT(outcome.err, Contains("run.yaml:3:26: training.micro_batch_sizes"));
  CHECK_THAT(outcome.err, Contains("did you mean \"micro_batch_size\"?"));
  CHECK_THAT(outcome.err, Contains("run.yaml:4:13: optimizer.lerning_rate"));
  CHECK(!fs::exists(bench / "out"));
}

TEST_CASE("data that is not there or not right") {
  const Bench bench;
  CHECK_THAT(bench.fails(3, {"data.train=[{path: absent.txt}]"}), Contains("absent.txt"));
  write_file(bench / "empty.txt", "");
  CHECK_THAT(bench.fails(3, {"data.train=[{path: empty.txt}]"}), Contains("empty.txt"));
  write_file(bench / "short.txt", "only a little");
  CHECK_THAT(bench.fails(3, {"data.train=[{path: short.txt}]"}), Contains("data.seq_length"));
  CHECK(!fs::exists(bench / "out"));  // no run began

  std::vector<uint16_t> ids(2000, 7);
  ids[1500] = 300;
  write_file(bench / "tokens.bin", token_file(ids));
  const std::string message =
      bench.fails(3, {"data.train=[{path: tokens.bin}]", "data.shuffle=false",
                      "training.max_steps=200", "output_dir=tokens"});
  CHECK_THAT(message, Contains("tokens.bin") && Contains("300") && Contains("1500"));

  std::string cut = token_file(std::vector<uint16_t>(2000, 7));
  cut.resize(cut.size() - 2);
  write_file(bench / "cut.bin", cut);
  CHECK_THAT(bench.fails(3, {"data.train=[{path: cut.bin}]"}), Contains("cut.bin"));
}

TEST_CASE("data and folders that cannot be used: file and line of the key") {
  const Bench bench;
  write_file(bench / "short.txt", "only a little");
  write_file(bench / "run.yaml",
             "model: {preset: toy}\n"
             "data:\n"
             "  train: [{path: absent.txt}]\n"
             "training: {max_steps: 4, micro_batch_size: 2}\n"
             "output_dir: text.txt/out\n");
  const auto error_of = [&](int code, Words words) {
    words.insert(words.begin() + 1, "run.yaml");
    return expect_code(code, bench.path(), words).err;
  };
  const std::string absent = "error: run.yaml:3:3: data.train: absent.txt: no such file";
  for (const char* command : {"train", "check"}) {
    CHECK_THAT(error_of(3, {command}), Contains(absent));
    CHECK_THAT(error_of(3, {command, "data.tokenizer=char"}), Contains(absent));
    CHECK_THAT(error_of(3, {command, "data.train=short.txt"}),
               Contains("error: --set data.train=short.txt: data.train: the training data has "));
    CHECK_THAT(error_of(3, {command, "data.train=text.txt", "data.val=none.txt"}),
               Contains("--set data.val=none.txt: data.val: none.txt: no such file") &&
                   !Contains("download"));
    CHECK_THAT(error_of(3, {command, "data.train=owner/name"}),
               Contains("`hf download NAME --repo-type dataset --local-dir FOLDER`"));
    CHECK_THAT(error_of(4, {command, "data.train=text.txt", "data.seq_length=16"}),
               Contains("error: run.yaml:5:1: output_dir: "));
  }
  for (const char* command : {"train", "check", "estimate"}) {
    CHECK_THAT(error_of(2, {command, "data.train=text.txt", "output_dir=muon",
                            "optimizer.name=muon", "precision.plan=fp8-safe"}),
               Contains("error: --set optimizer.name=muon: optimizer.name: muon stores"));
  }
}

TEST_CASE("a token file that shrinks while a run reads it") {
  const Bench bench;
  write_file(bench / "tokens.bin", token_file(std::vector<uint16_t>(60000, 7)));
  Process process(bench.path(),
                  Bench::command({"data.train=[{path: tokens.bin}]", "training.max_steps=100000",
                                  "checkpoint.interval=0"}));
  REQUIRE(process.wait_until([&] { return last_logged_step(bench / "out") >= 3; }));
  fs::resize_file(bench / "tokens.bin", 1024 + 200);
  const Outcome outcome = process.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 3);
  CHECK_THAT(outcome.err, Contains("tokens.bin"));
}

TEST_CASE("settings that cannot go together") {
  const Bench bench;
  CHECK_THAT(bench.fails(2, {"model.vocab_size=100"}),
             Contains("model.vocab_size") && Contains("258"));
  CHECK_THAT(bench.fails(2, {"data.seq_length=65"}), Contains("max_position_embeddings"));
  CHECK_THAT(bench.fails(2, {"precision.plan=te-current", "fp8.exempt=['*.mlp.dwon']"}),
             Contains("*.mlp.dwon") && Contains("layers.0.mlp.down"));
  CHECK_THAT(bench.fails(2, {"precision.plan=te-currant"}), Contains("te-current"));
  CHECK(!fs::exists(bench / "out"));
}

TEST_CASE("a model folder that lacks its configuration or its tokenizer") {
  const Bench bench;
  const auto error_of = [&](int code, const Words& more) {
    Words words = Bench::command({"output_dir=new"});
    std::erase(words, "model.preset=toy");
    words.insert(words.end(), more.begin(), more.end());
    return expect_code(code, bench.path(), words).err;
  };
  fs::create_directory(bench / "empty");
  CHECK_THAT(error_of(4, {"model.from=empty"}),
             Contains("--set model.from=empty: model.from: empty has no config.json"));
  expect_code(0, bench.path(), Bench::command({"data.tokenizer=char"}));
  const fs::path model = bench.checkpoint("step-000006");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(model / name, bench / "empty" / name);
  }
  CHECK_THAT(error_of(2, {"model.from=empty"}),
             Contains("data.tokenizer: 'byte' (the default) has 258 tokens, but the model of empty "
                      "has ") &&
                 Contains("that folder has no tokenizer; set data.tokenizer to ") &&
                 Contains("model.resize_vocabulary: 258"));
}

TEST_CASE("a damaged checkpoint is passed over, with a note") {
  const Bench bench;
  expect_code(0, bench.path(), Bench::command());
  const std::string weights = read_file(bench.checkpoint("step-000006") / "model.safetensors");
  const std::string damage = GENERATE("cut", "flipped", "absent", "no manifest");
  INFO(damage);
  const fs::path file = bench.checkpoint("step-000006") / "optimizer.safetensors";
  if (damage == "cut") {
    fs::resize_file(file, fs::file_size(file) - 1);
  } else if (damage == "flipped") {
    std::string bytes = read_file(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file(file, bytes);
  } else if (damage == "absent") {
    fs::remove(file);
  } else {
    fs::remove(bench.checkpoint("step-000006") / "MANIFEST.json");
  }
  const Outcome outcome = expect_code(0, bench.path(), Bench::command());
  CHECK_THAT(outcome.err, Contains("skipped checkpoint step-000006"));
  CHECK_THAT(outcome.out, Contains("resumed from out/checkpoints/step-000004 at step 4"));
  CHECK(read_file(bench.checkpoint("step-000006") / "model.safetensors") == weights);
}

TEST_CASE("a run whose checkpoints are all damaged does not quietly begin anew") {
  const Bench bench;
  expect_code(0, bench.path(), Bench::command());
  const std::string metrics = read_file(bench / "out/metrics.jsonl");
  for (const char* step : {"step-000002", "step-000004", "step-000006"}) {
    if (fs::exists(bench.checkpoint(step))) {
      fs::resize_file(bench.checkpoint(step) / "model.safetensors", 100);
    }
  }
  const Outcome outcome = expect_code(4, bench.path(), Bench::command());
  CHECK_THAT(outcome.err, Contains("step-000006") && Contains("step-000004"));
  CHECK_THAT(outcome.err, Contains("output_dir"));
  CHECK(read_file(bench / "out/metrics.jsonl") == metrics);
}

TEST_CASE("a checkpoint of another run is refused, naming the difference") {
  const Bench bench;
  expect_code(0, bench.path(), Bench::command());
  CHECK_THAT(bench.fails(4, {"precision.plan=bf16"}), Contains("fp32") && Contains("bf16"));
  CHECK_THAT(bench.fails(4, {"training.seed=2"}), Contains("training.seed: was 1, is 2"));
  CHECK_THAT(bench.fails(4, {"data.seq_length=32"}), Contains("data.seq_length: was 16, is 32"));
  CHECK_THAT(bench.fails(4, {"model.hidden_size=128", "model.head_dim=32"}),
             Contains("step-000006"));
  write_file(bench / "text.txt", small_text(9000));
  CHECK_THAT(bench.fails(4, {}), Contains("text.txt had"));
  CHECK_THAT(bench.fails(2, {"checkpoint.resume=never"}), Contains("checkpoints"));
  CHECK_THAT(bench.fails(4, {"checkpoint.resume=out/checkpoints/step-000005"}),
             Contains("step-000005"));
}

TEST_CASE("two runs in one folder") {
  const Bench bench;
  Process first(bench.path(), Bench::command({"training.max_steps=1000000"}));
  REQUIRE(first.wait_until([&] { return last_logged_step(bench / "out") >= 1; }));
  CHECK_THAT(bench.fails(2, {}), Contains("out") && Contains("run"));
  CHECK(!first.has_ended());
  first.send(SIGKILL);
  first.wait();
  // The lock of a dead run is no obstacle.
  const Outcome outcome = run_program(
      bench.path(), Bench::command({"training.max_steps=1000000", "training.max_time=1s"}));
  CHECK(outcome.code == 75);
}

TEST_CASE("a run that diverges") {
  const Bench bench;
  const Words wild = {"optimizer.lr=1e30", "scheduler.type=constant", "training.max_steps=60",
                      "training.max_consecutive_skips=10"};
  Words stop = wild;
  stop.push_back("training.non_finite=stop");
  CHECK_THAT(bench.fails(5, stop), Contains("not finite") && Contains("non_finite: stop"));
  Words skip = wild;
  skip.push_back("output_dir=skip");
  CHECK_THAT(bench.fails(5, skip), Contains("diverged") && Contains("optimizer.lr") &&
                                       Contains("Nothing had been saved yet"));
  CHECK(!fs::exists(bench / "skip/checkpoints/latest"));
}

TEST_CASE("a run that diverges keeps the good checkpoints and never ends as done") {
  const Bench bench;
  expect_code(0, bench.path(), Bench::command({"training.max_steps=4"}));
  const fs::path good = bench.checkpoint("step-000004");
  Words wild = {"optimizer.lr=1e30", "scheduler.type=constant", "checkpoint.keep_last=1"};
  // Whatever the number of steps is, and however seldom they are looked at.
  for (const char* steps : {"training.max_steps=7", "training.max_steps=40"}) {
    for (const char* interval : {"logging.interval=1", "logging.interval=1000"}) {
      INFO(steps << " " << interval);
      Words words = wild;
      words.emplace_back(steps);
      words.emplace_back(interval);
      const std::string message = bench.fails(5, words);
      CHECK_THAT(message, Contains("diverged") && Contains("The checkpoint of step 4 is intact, "
                                                           "and the next start resumes from it"));
      CHECK_THAT(message, Contains("step 6 is not saved: its gradient is not finite"));
      CHECK(fs::exists(good / "model.safetensors"));
      CHECK(!fs::exists(bench.checkpoint("step-000007")));
    }
  }
  const Outcome outcome =
      expect_code(0, bench.path(), Bench::command({"training.max_steps=5", "output_dir=out"}));
  CHECK_THAT(outcome.out, Contains("resumed from out/checkpoints/step-000004"));
  wild.emplace_back("checkpoint.interval=1");
  wild.emplace_back("optimizer.lr=1e39");  // the weights themselves overflow at once
  CHECK_THAT(bench.fails(5, wild),
             Contains("weight") && Contains("nothing of this step is written"));
  CHECK(fs::exists(bench.checkpoint("latest")));
}

TEST_CASE("the last line says of a run that has diverged or died that it has") {
  const Bench bench;
  const auto last_line = [&](const Words& more) {
    Words words = {"optimizer.lr=30", "scheduler.type=constant", "scheduler.warmup_steps=100",
                   "precision.plan=fp32"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = expect_code(0, bench.path(), Bench::command(words));
    return lines_of(outcome.out).back();
  };
  CHECK_THAT(last_line({"output_dir=far", "training.max_steps=9"}),
             Contains(", where it began: training has diverged; lower optimizer.lr)"));
  // Resumed, it still knows where it began.
  CHECK_THAT(last_line({"output_dir=far", "training.max_steps=10"}), Contains(", where it began"));
  CHECK_THAT(last_line({"output_dir=well", "optimizer.lr=1e-3", "training.max_steps=9"}),
             !Contains("where it began"));
}

TEST_CASE("a run goes on where standard output is closed, full or nobody reads it") {
  const Bench bench;
  const auto code_with = [&](const std::string& out, const std::string& script) {
    Process process(bench.path(), Bench::command({"output_dir=" + out}), {},
                    {"/bin/sh", "-c", script});
    const Outcome outcome = process.wait();
    INFO(outcome.err);
    CHECK(fs::exists(bench / out / "summary.json"));
    CHECK_THAT(read_file(bench / out / "train.log"), Contains("done: 6 steps"));
    return outcome.code;
  };
  CHECK(code_with("full", "exec \"$0\" \"$@\" >/dev/full") == 0);
  CHECK(code_with("closed", "exec \"$0\" \"$@\" >&-") == 0);
  CHECK(code_with("pipe", "{ \"$0\" \"$@\"; echo $? >code; } | true; exit $(cat code)") == 0);
  CHECK_THAT(read_file(bench / "closed/run.lock"), !Contains("step"));
}

/// A file system of a given size, for root only.
class SmallDisk {
 public:
  SmallDisk(fs::path where, const char* size) : where_(std::move(where)) {
    fs::create_directory(where_);
    mounted_ = mount("tmpfs", where_.c_str(), "tmpfs", 0, size) == 0;
  }
  ~SmallDisk() {
    if (mounted_) {
      umount2(where_.c_str(), MNT_DETACH);
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  fs::path where_;
  bool mounted_ = false;
};

TEST_CASE("a full disk: the older checkpoint stays whole, and the run can go on") {
  const Bench bench;
  const SmallDisk disk(bench / "out", "size=2600k");  // one checkpoint has 1.5 MB
  if (!disk.mounted()) {
    WARN("skipped: a small file system cannot be mounted here");
    return;
  }
  CHECK_THAT(bench.fails(4, {}), Contains("No space left"));
  CHECK(fs::exists(bench.checkpoint("step-000002") / "model.safetensors"));
  CHECK(!fs::exists(bench.checkpoint("step-000004")));
  CHECK(!fs::exists(bench.checkpoint("step-000004.partial")));
  REQUIRE(mount("tmpfs", (bench / "out").c_str(), "tmpfs", MS_REMOUNT, "size=64m") == 0);
  const Outcome outcome = expect_code(0, bench.path(), Bench::command());
  CHECK_THAT(outcome.out, Contains("resumed from out/checkpoints/step-000002"));
}

TEST_CASE("standard output that cannot be written is an error") {
  const Bench bench;
  Process process(bench.path(), {"explain", "--plans"}, {},
                  {"/bin/sh", "-c", "exec \"$0\" \"$@\" >/dev/full"});
  const Outcome outcome = process.wait();
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.err, Contains("standard output cannot be written"));
}

TEST_CASE("a run that does not fit is refused before it allocates anything") {
  const Bench bench;
  const Outcome outcome =
      expect_code(4, bench.path(), Bench::command({"training.micro_batch_size=1000000"}));
  CHECK_THAT(outcome.err, Contains("lower training.micro_batch_size"));
  CHECK_FALSE(fs::exists(bench / "out" / "metrics.jsonl"));
}

TEST_CASE("a folder that cannot be made") {
  const Bench bench;
  write_file(bench / "file", "x");
  const Outcome outcome = run_program(bench.path(), Bench::command({"output_dir=file/out"}));
  INFO(outcome.err);
  CHECK((outcome.code == 2 || outcome.code == 4));
  CHECK_THAT(outcome.err, Contains("cannot create file/out: Not a directory; choose an output "
                                   "directory in a folder that can be written to"));
  CHECK_THAT(bench.fails(4, {"output_dir=/proc/runs/out"}),
             Contains("output_dir: cannot create /proc/runs: No such file or directory; choose"));
}

}  // namespace
}  // namespace fp8train::test
