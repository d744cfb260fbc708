// A run whose n-th call on a file fails, or ends it, goes on to the bits of an undisturbed run, or
// says which file it could not use.

#include <fmt/format.h>

#include <csignal>
#include <set>

#include "io/checkpoint/checkpoint.h"
#include "program.h"
#include "share.h"

namespace fp8train::test {
namespace {

const char* const kFinal = "checkpoints/step-000006";

Words command(const std::string& folder, int save_interval = 2) {
  return {"model.preset=toy",
          "data.train=[{path: ../text.txt}]",
          "data.val_fraction=0.1",
          "data.seq_length=16",
          "training.max_steps=6",
          "training.micro_batch_size=1",
          "eval.interval=3",
          "eval.batches=1",
          "sample.interval=0",
          "logging.interval=1",
          "checkpoint.interval=" + std::to_string(save_interval),
          "checkpoint.keep_last=2",
          "threads=1",
          "precision.plan=te-delayed",
          "precision.amax_history_len=4",
          "output_dir=" + folder};
}

/// One run in a folder of its own, whose files' calls are counted.
class Run {
 public:
  explicit Run(const std::string& name) : name_(name) {
    write_file(folder_ / "text.txt", small_text(4000));
    fs::create_directories(folder_ / "here");
  }

  Outcome start(long call, const std::string& kind, const Words& more = {}) {
    Words words = command(name_);
    words.insert(words.end(), more.begin(), more.end());
    return start_faulty(words, "FP8TRAIN_FAULT_CALL=" + std::to_string(call), kind);
  }
  /// Saves every step. `every`: "NAME TEXT" of the calls that fail.
  Outcome start_with_every(const std::string& every, const std::string& kind) const {
    return start_faulty(command(name_, 1), "FP8TRAIN_FAULT_EVERY=" + every, kind);
  }
  Outcome resume() { return run_program(folder_ / "here", command(name_)); }

  /// "NUMBER NAME PATH" of each call of the last start.
  std::vector<std::string> calls() const { return lines_of(read_file(log())); }
  fs::path final_checkpoint() const { return folder_ / "here" / name_ / kFinal; }
  fs::path path() const { return folder_ / "here" / name_; }

  /// Runs until it is ended, for a minute at most.
  Process start_long(const std::string& calls, const std::string& kind,
                     const Words& more = {}) const {
    Words words = command(name_);
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("training.max_steps=10000000");
    words.emplace_back("training.max_time=60s");
    return Process(folder_ / "here", words, environment(calls, kind));
  }

 private:
  Words environment(const std::string& calls, const std::string& kind) const {
    return {fmt::format("LD_PRELOAD={}", FP8TRAIN_FILE_FAULTS),
            "FP8TRAIN_FAULT_FOLDER=" + (folder_ / "here").string(), calls,
            "FP8TRAIN_FAULT_KIND=" + kind};
  }
  Outcome start_faulty(const Words& words, const std::string& calls,
                       const std::string& kind) const {
    fs::remove(log());
    Words variables = environment(calls, kind);
    variables.push_back("FP8TRAIN_FAULT_LOG=" + log().string());
    Process process(folder_ / "here", words, variables);
    return process.wait();
  }
  fs::path log() const { return folder_ / "calls"; }

  TempDir folder_;
  std::string name_;
};

/// The files that make up the trained state.
void check_same_weights(const Run& whole, const Run& other) {
  for (const char* name : {"model.safetensors", "state.json"}) {
    INFO(name);
    REQUIRE(fs::exists(other.final_checkpoint() / name));
    CHECK(same_bytes(whole.final_checkpoint() / name, other.final_checkpoint() / name));
  }
}

std::string without_partial(const fs::path& path) {
  return (path.extension() == ".partial" ? path.stem() : path.filename()).string();
}

/// Whether a message names the file of a call, or its folder: "metrics.jsonl" or "step-000002".
bool names_file(const std::string& message, const std::string& call) {
  const fs::path path = call.substr(call.find('/'));
  return message.find(without_partial(path)) != std::string::npos ||
         message.find(without_partial(path.parent_path())) != std::string::npos;
}

}  // namespace

TEST_CASE("cleaning up that fails does not undo a save or end a run") {
  // Each call of this name on a path with this text fails: of an old checkpoint while it is
  // deleted, whatever it is called then, and of the file that names the newest one.
  const std::string every = GENERATE("unlink step-000001", "unlink step-00000",
                                     "open latest.partial", "rename latest.partial");
  const std::string kind = GENERATE("ENOTEMPTY", "EBUSY", "EIO");
  const Run run("run");
  const Outcome outcome = run.start_with_every(every, kind);
  INFO(every << " " << kind << "\n" << outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, !Catch::Contains("is not saved"));
  CHECK_THAT(outcome.err, Catch::Contains("; the next save tries again"));
  for (const char* step : {"step-000005", "step-000006"}) {
    CHECK_NOTHROW(verify_checkpoint(run.path() / "checkpoints" / step));
  }
}

TEST_CASE("no error of a save, of cleaning up or of a lock loses what was saved") {
  // Calls and the texts of their paths. Each of these calls fails, always.
  const Words places = {"mkdir step-000003",    "open step-000003",      "write step-000003",
                        "fsync step-000003",    "rename step-000003",    "fsync checkpoints",
                        "read step-000003",     "unlink step-000001",    "opendir checkpoints",
                        "open latest.partial",  "rename latest.partial", "flock run.lock",
                        "open run.lock",        "write run.lock",        "fsync run.lock",
                        "unlink run.lock.held", "readdir checkpoints"};
  const Words kinds = {"EIO",   "ENOSPC",    "EDQUOT", "EROFS",  "ESTALE", "EACCES",
                       "EPERM", "ENOTEMPTY", "EBUSY",  "ENOLCK", "ENOSYS", "EOPNOTSUPP"};
  const Run whole("run");
  REQUIRE(whole.start_with_every("none", "").code == 0);
  const Share share = Share::of_environment(17);
  size_t index = 0;
  for (const std::string& place : places) {
    for (const std::string& kind : kinds) {
      if (!share.has(index++)) continue;
      const Run run("run");
      const Outcome outcome = run.start_with_every(place, kind);
      INFO(place << " " << kind << ": " << outcome.code << "\n" << outcome.out << outcome.err);
      CHECK((outcome.code == 0 || outcome.code == 4));
      if (outcome.code != 0) {
        CHECK_THAT(outcome.err, Catch::Contains("error: "));
      }
      size_t saved = 0;
      const fs::path checkpoints = run.path() / "checkpoints";
      for (const CheckpointFolder& checkpoint : find_checkpoints(checkpoints)) {
        CHECK_NOTHROW(verify_checkpoint(checkpoint.path));
        ++saved;
      }
      if (saved > 0) {
        CHECK_THAT(outcome.err, !Catch::Contains("Nothing had been saved yet"));
      }
      const Outcome resumed = run.start_with_every("none", "");
      INFO("resumed: " << resumed.code << "\n" << resumed.out << resumed.err);
      REQUIRE(resumed.code == 0);
      check_same_weights(whole, run);
    }
  }
}

TEST_CASE("a run on a file system without locks keeps others out all the same") {
  const std::string kind = GENERATE("ENOSYS", "EOPNOTSUPP", "ENOLCK");
  const Run run("run");
  Process first = run.start_long("FP8TRAIN_FAULT_EVERY=flock run.lock", kind);
  REQUIRE(first.wait_until([&] { return last_logged_step(run.path()) > 0; }));
  const Outcome second = run.start_with_every("flock run.lock", kind);
  CHECK(second.code == 2);
  CHECK_THAT(second.err, Catch::Contains("in use by another run: process ") &&
                             Catch::Contains("run.lock.held if that run is over"));
  first.send(SIGKILL);
  first.wait();
  const Outcome third = run.start_with_every("flock run.lock", kind);
  INFO(third.err);
  CHECK(third.code == 0);
  CHECK_THAT(third.err, Catch::Contains("its lock (process ") && Catch::Contains("was taken over"));
  CHECK_FALSE(fs::exists(run.path() / "run.lock.held"));
}

TEST_CASE("a run whose lock is removed ends before it destroys the files of another") {
  const bool has_locks = GENERATE(true, false);
  const Run run("run");
  Process first = run.start_long("FP8TRAIN_FAULT_EVERY=flock run.lock", has_locks ? "" : "ENOSYS");
  REQUIRE(first.wait_until([&] { return last_logged_step(run.path()) > 0; }));
  fs::remove(run.path() / (has_locks ? "run.lock" : "run.lock.held"));
  const Outcome outcome = first.wait();
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.err, Catch::Contains("was removed or replaced during this run"));
  for (const CheckpointFolder& checkpoint : find_checkpoints(run.path() / "checkpoints")) {
    CHECK_NOTHROW(verify_checkpoint(checkpoint.path));
  }
}

TEST_CASE("a lock that other machines may not see ends the start") {
  const Run run("run");
  const Outcome outcome = run.start_with_every("fsync run.lock", "EIO");
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.err, Catch::Contains("cannot write run/run.lock"));
}

TEST_CASE("machines with locks and without share a folder: one run at a time is in it") {
  const auto& [first_kind, second_kind] =
      GENERATE(std::pair("", "ENOSYS"), std::pair("ENOLCK", ""));
  CAPTURE(first_kind, second_kind);
  const Run run("run");
  const std::string locks = "flock run.lock";
  Process first = run.start_long("FP8TRAIN_FAULT_EVERY=" + locks, first_kind);
  REQUIRE(first.wait_until([&] { return last_logged_step(run.path()) > 0; }));
  const Outcome second = run.start_with_every(locks, second_kind);
  CHECK(second.code == 2);
  CHECK_THAT(second.err, Catch::Contains("in use by another run: process "));
  // The run that was refused has taken nothing away from the one that is there.
  const Outcome third = run.start_with_every(locks, first_kind);
  CHECK(third.code == 2);
  CHECK_THAT(third.err, Catch::Contains("in use by another run: process "));
  first.send(SIGKILL);
  first.wait();
  const Outcome fourth = run.start_with_every(locks, second_kind);
  INFO(fourth.err);
  CHECK(fourth.code == 0);
  CHECK_THAT(fourth.err, Catch::Contains("was taken over"));
  const Outcome fifth = run.start_with_every(locks, first_kind);
  CHECK(fifth.code == 0);
  CHECK_THAT(fifth.err, !Catch::Contains("was taken over"));
  CHECK_FALSE(fs::exists(run.path() / "run.lock.held"));
}

TEST_CASE("a run that has lost its lock with a save in flight leaves the folder as it is") {
  const Run run("run");
  // Each file of weights takes two seconds; the loss is seen with the next line of metrics.
  Process first = run.start_long("FP8TRAIN_FAULT_EVERY=fsync model.safetensors", "SLOW",
                                 {"checkpoint.interval=200", "eval.interval=0"});
  const fs::path root = run.path() / "checkpoints";
  REQUIRE(first.wait_until([&] { return fs::exists(root / "step-000200.partial"); }));
  fs::create_directories(root / "step-009999.partial");
  write_file(root / "step-009999.partial" / "f", "of another run");
  fs::remove(run.path() / "run.lock");
  const Outcome outcome = first.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.err, Catch::Contains("was removed or replaced during this run"));
  CHECK(fs::exists(root / "step-009999.partial" / "f"));
  CHECK(fs::exists(root / "step-000200.partial"));
  CHECK_FALSE(fs::exists(root / "step-000200"));
  CHECK_FALSE(fs::exists(root / "latest"));
}

TEST_CASE("what a run has recorded is on the disk before a checkpoint says that it went so far") {
  Run run("run");
  // Otherwise the lines of the next steps come in between.
  REQUIRE(run.start(0, "", {"checkpoint.async=false"}).code == 0);
  std::set<std::string> unflushed, new_folders;
  size_t manifests = 0;
  for (const std::string& call : run.calls()) {
    const std::string verb = call.substr(call.find(' ') + 1, call.find('/') - call.find(' ') - 2);
    const fs::path path = call.substr(call.find('/'));
    if (verb == "write" && (path.extension() == ".jsonl" || path.extension() == ".log")) {
      unflushed.insert(path.filename());
    } else if (verb == "fsync") {
      unflushed.erase(path.filename());
      new_folders.erase(path);
    } else if (verb == "mkdir" && path.extension() != ".partial") {  // has no name yet
      new_folders.insert(path.parent_path());
    }
    if (call.find("MANIFEST.json.partial") != std::string::npos && verb == "write") {
      ++manifests;
      CHECK(unflushed == std::set<std::string>{});
      CHECK(new_folders == std::set<std::string>{});
    }
  }
  CHECK(manifests == 3);
}

TEST_CASE("every call of a run on a file may fail, be cut short or be the last") {
  Run whole("run");
  const Outcome undisturbed = whole.start(0, "");
  INFO(undisturbed.err);
  REQUIRE(undisturbed.code == 0);
  const std::vector<std::string> calls = whole.calls();
  REQUIRE(calls.size() > 200);
  constexpr size_t kEvery = 24;
  const Share share = Share::of_environment(kEvery);
  size_t index = 0;
  size_t equal = 0;
  size_t refused = 0;
  for (const std::string& kind : Words{"KILL", "TERM", "EIO", "ENOSPC", "SHORT"}) {
    const bool is_signal = kind == "KILL" || kind == "TERM";
    for (size_t call = 1; call <= calls.size(); ++call) {
      if (!share.has(index++)) {
        continue;
      }
      Run run("run");
      const Outcome outcome = run.start(static_cast<long>(call), kind);
      const std::vector<std::string> made = run.calls();
      INFO(kind << " at call " << (call <= made.size() ? made[call - 1] : "that was not made")
                << "\nexit code " << outcome.code << "\n"
                << outcome.out << outcome.err);
      if (kind == "KILL") {
        CHECK(outcome.code == 128 + SIGKILL);
      } else if (kind == "TERM") {
        CHECK((outcome.code == 75 || outcome.code == 0));
      } else if (outcome.code != 0) {
        CHECK((outcome.code == 2 || outcome.code == 3 || outcome.code == 4));
        CHECK(names_file(outcome.err, made[call - 1]));
        ++refused;
      }
      if (is_signal || outcome.code != 0) {
        const Outcome resumed = run.resume();
        INFO("resumed: exit code " << resumed.code << "\n" << resumed.out << resumed.err);
        REQUIRE(resumed.code == 0);
      }
      check_same_weights(whole, run);
      ++equal;
    }
  }
  fmt::print(
      "{} calls on files; {} faults: {} ended with the undisturbed weights, {} of them after an "
      "error that named the file\n",
      calls.size(), equal, equal, refused);
}

}  // namespace fp8train::test
