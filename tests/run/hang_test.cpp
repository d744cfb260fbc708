// Runs of which a rank stops, hangs or is slow: they end with exit code 86 and name it.

#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "program.h"

namespace fp8train::test {
namespace {

constexpr double kLimit = 4;  // seconds that a section and a wait may take

const Words kEnvironment = {"OMP_NUM_THREADS=1", "OMPI_MCA_mpi_yield_when_idle=1",
                            "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"};
const Words kMpirun = {
    FP8TRAIN_MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"};

class Folder {
 public:
  Folder() { write_file(folder_ / "text.txt", small_text(20000)); }
  const fs::path& path() const { return folder_.path(); }
  fs::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  TempDir folder_;
};

/// Without limits of its own.
Words patient_command(const std::string& name) {
  return {"model.preset=toy",
          "data.train=[{path: text.txt}]",
          "data.val_fraction=0.1",
          "data.seq_length=32",
          "training.max_steps=20",
          "training.micro_batch_size=2",
          "training.global_batch_size=8",
          "eval.interval=10",
          "eval.batches=4",
          "logging.interval=5",
          "checkpoint.interval=5",
          "device=cpu",
          "precision.plan=bf16",
          "output_dir=" + name};
}

Words command(const std::string& name, const Words& more = {}) {
  Words words = patient_command(name);
  words.push_back("comm.timeout=" + std::to_string(kLimit));
  for (const char* const section : {"start_up", "data", "step", "evaluation", "save", "end"}) {
    words.push_back(std::string("watchdog.") + section + "=" + std::to_string(kLimit));
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words with_fault(const std::string& fault, Words words) {
  words.insert(words.begin(), {"--fault", fault});
  return words;
}

/// A fault of a call on the files whose paths begin so, relative to `folder`
/// (support/file_faults).
Words with_file_fault(const Folder& folder, const std::string& kind, const std::string& files,
                      long call, const fs::path& log = {}) {
  Words environment = kEnvironment;
  environment.insert(
      environment.end(),
      {std::string("LD_PRELOAD=") + FP8TRAIN_FILE_FAULTS,
       "FP8TRAIN_FAULT_FOLDER=" + (folder / files).string(), "FP8TRAIN_FAULT_KIND=" + kind,
       "FP8TRAIN_FAULT_LOG=" + log.string(), "FP8TRAIN_FAULT_CALL=" + std::to_string(call)});
  return environment;
}

Outcome run(const Folder& folder, const Words& launcher, const Words& words, int code,
            const Words& environment = kEnvironment) {
  Process process(folder.path(), words, environment, launcher, FP8TRAIN_FAULTY_PROGRAM);
  Outcome outcome = process.wait();
  CAPTURE(outcome.out, outcome.err);
  REQUIRE(outcome.code == code);
  return outcome;
}

nlohmann::json flight_record(const fs::path& run, int rank) {
  const std::string name = "flight-0000" + std::to_string(rank) + ".json";
  return nlohmann::json::parse(read_file(run / name));
}

/// One that has ended may wait for somebody who asks for its code.
bool is_running(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end, 3) != ") Z";
}

/// mpirun ends before the ranks that it has killed.
void check_no_process(const nlohmann::json& record) {
  const int process = record.at("process");
  INFO("process " << process);
  for (int tries = 0; is_running(process) && tries < 50; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK_FALSE(is_running(process));
}

/// The section in which `record` has seen its rank, or another one.
std::string section_of(const nlohmann::json& record, int rank) {
  if (record.at("rank") == rank) {
    return record.at("section");
  }
  for (const nlohmann::json& other : record.at("other_ranks")) {
    if (other.at("rank") == rank) {
      CHECK(other.at("process_state") == "stopped");
      return other.at("section");
    }
  }
  return "";
}

/// Without faults: to the weights of a run that none has disturbed.
void check_resumed(const Folder& folder, const std::string& name) {
  run(folder, kMpirun, patient_command(name), 0);
  run(folder, kMpirun, patient_command("whole"), 0);
  for (const char* const file : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path path = fs::path("checkpoints") / "step-000020" / file;
    CHECK(same_bytes(folder / name / path, folder / "whole" / path));
  }
}

}  // namespace

TEST_CASE("a rank that is stopped is named with its section, and the others end") {
  struct Case {
    int rank;
    int step;
    const char* section;
  };
  const auto [rank, step, section] = GENERATE(
      Case{1, 0, "start_up"}, Case{1, 3, "data"}, Case{0, 8, "step"}, Case{1, 7, "exchange"},
      Case{0, 10, "save"}, Case{1, 10, "save"}, Case{1, 10, "evaluation"}, Case{0, 20, "end"});
  CAPTURE(rank, step, section);
  const Folder folder;
  const std::string fault =
      "stop@" + std::to_string(rank) + ":" + std::to_string(step) + ":" + section;
  const Words words = command("run", {"watchdog.start_up=60"});  // longer than MPI may take
  const Outcome outcome = run(folder, kMpirun, with_fault(fault, words), 86);
  CAPTURE(outcome.err);
  if (step == 0) {  // before the ranks have met nobody knows the others, nor a run directory
    CHECK_THAT(outcome.err, Catch::Contains("starting MPI") && Catch::Contains("in start_up for"));
  } else {
    const nlohmann::json record = flight_record(folder / "run", 1 - rank);
    CHECK(section_of(record, rank) == section);
    CHECK(record.at("step") == step);
    CHECK(record.at("seconds") >= kLimit * 0.9);
    CHECK(record.at("seconds") < kLimit * 2);
    const size_t operations = record.at("operations").size();
    CHECK((operations > 10 && operations <= 64));
    CHECK_THAT(outcome.err, Catch::Contains("rank " + std::to_string(rank)) &&
                                Catch::Contains("stopped): step " + std::to_string(step) + ", in " +
                                                section + " for"));
    check_no_process(record);
    check_no_process(record.at("other_ranks").at(0));
  }
  check_resumed(folder, "run");
}

TEST_CASE("a rank that hangs says so itself, and what the other waits for") {
  const Folder folder;
  const Outcome outcome =
      run(folder, kMpirun, with_fault("hang@1:7:data", command("run", {"comm.timeout=60"})), 86);
  CAPTURE(outcome.err);
  CHECK_THAT(outcome.err, Catch::Contains("watchdog: data took longer than") &&
                              Catch::Contains("Rank 1 (process") &&
                              Catch::Contains("step 7, in exchange for"));
  const nlohmann::json record = flight_record(folder / "run", 1);
  CHECK(record.at("section") == "data");
  CHECK(record.at("waits_for").is_null());
  CHECK(record.at("other_ranks").at(0).at("waits_for").at("name") == "all_to_all");
  check_resumed(folder, "run");
}

TEST_CASE("a single rank that hangs ends too") {
  const char* const section = GENERATE("start_up", "data", "step", "evaluation", "save", "end");
  CAPTURE(section);
  const std::string step = section == std::string("start_up") ? "0"
                           : section == std::string("end")    ? "20"
                                                              : "10";
  const Folder folder;
  Words words = with_fault("hang@0:" + step + ":" + section, command("run"));
  words.push_back(std::string("watchdog.") + section + "=0.5");
  const Outcome outcome = run(folder, {}, words, 86);
  CHECK_THAT(outcome.err,
             Catch::Contains(std::string("watchdog: ") + section + " took longer than 0.5 s"));
}

TEST_CASE("before the ranks have met, a rank that hangs has its launcher's number") {
  const auto [number, rank] =
      GENERATE(std::pair("3", 3), std::pair("-1", 0), std::pair("99999999999", 0));
  const Folder folder;
  fs::create_directory(folder / "run");
  Words words = with_fault("hang@0:0:start_up", command("run"));
  words.emplace_back("watchdog.start_up=0.3");
  Words environment = kEnvironment;
  environment.push_back(std::string("PMI_RANK=") + number);
  const Outcome outcome = run(folder, {}, words, 86, environment);
  CHECK_THAT(outcome.err, Catch::Contains("Rank " + std::to_string(rank) + " (process"));
  const nlohmann::json record = flight_record(folder / "run", rank);
  CHECK(record.at("rank") == rank);
  CHECK(record.at("ranks").is_null());
  CHECK(record.at("other_ranks").empty());
}

TEST_CASE("a thread that hangs while it writes a checkpoint ends the run at the next save") {
  const bool alone = GENERATE(true, false);
  CAPTURE(alone);
  const Folder folder;
  const Outcome outcome =
      run(folder, alone ? Words() : kMpirun, command("run", {"comm.timeout=60"}), 86,
          with_file_fault(folder, "HANG", "run/checkpoints/step-000010.partial/model", 1));
  CHECK_THAT(outcome.err, Catch::Contains("watchdog: save took longer than 4 s. Rank 0 (process") &&
                              Catch::Contains("): step 15, in save for"));
  const nlohmann::json record = flight_record(folder / "run", 0);
  CHECK(record.at("section") == "save");
  CHECK(record.at("other_ranks").size() == (alone ? 0 : 1));
  CHECK(fs::exists(folder / "run" / "checkpoints" / "step-000005"));
  CHECK_FALSE(fs::exists(folder / "run" / "checkpoints" / "step-000010"));
  if (!alone) {
    CHECK(record.at("other_ranks").at(0).at("waits_for").at("name") == "barrier");
    check_resumed(folder, "run");
  }
}

/// From the middle of the run on no call on its files returns: neither the flight record's.
TEST_CASE("a disk that no longer answers ends the run with a report all the same") {
  const Folder folder;
  run(folder, {}, patient_command("whole"), 0,
      with_file_fault(folder, "", "whole/", 0, folder / "calls"));
  const size_t calls = lines_of(read_file(folder / "calls")).size();
  REQUIRE(calls > 100);
  const Outcome outcome =
      run(folder, {}, command("run"), 86,
          with_file_fault(folder, "HANG", "run/", static_cast<long>(calls / 2)));
  CHECK_THAT(outcome.err, Catch::Contains("error: watchdog: ") &&
                              Catch::Contains("Rank 0 (process") &&
                              Catch::Contains(". No flight record: run does not answer"));
  CHECK_FALSE(fs::exists(folder / "run" / "flight-00000.json"));
}

TEST_CASE("a limit of 0 is none, and a slow rank is no hanging one") {
  const Folder folder;
  run(folder, {},
      with_fault("slow@0:18:data/300",
                 command("run", {"watchdog.data=0", "watchdog.start_up=0.2", "watchdog.step=0.2",
                                 "watchdog.start_up=4", "watchdog.save=4"})),
      0);
}

/// Four seconds in a section that may take three; in two and a half of them the process is stopped.
TEST_CASE("the time in which a process is stopped does not count") {
  const Folder folder;
  Words words = command("run", {"training.max_steps=5", "training.global_batch_size=2",
                                "logging.interval=1", "eval.interval=0", "watchdog.data=3"});
  Process process(folder.path(), with_fault("slow@0:5:data/4000", words), kEnvironment, {},
                  FP8TRAIN_FAULTY_PROGRAM);
  REQUIRE(process.wait_until([&] { return last_logged_step(folder / "run") >= 4; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.send(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  process.send(SIGCONT);
  const Outcome outcome = process.wait();
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
}

TEST_CASE("the slowest rank and its section are in the metrics") {
  const Folder folder;
  const std::string section = GENERATE("data", "evaluation");
  run(folder, kMpirun, with_fault("slow@1:1:" + section + "/200", command("run")), 0);
  std::vector<nlohmann::json> found;
  for (const std::string& line : lines_of(read_file(folder / "run" / "metrics.jsonl"))) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("slowest_rank")) {
      found.push_back(json.at("slowest_rank"));
    }
  }
  REQUIRE(found.size() == 4);
  // Ten batches of data in five steps; one evaluation, which the line after it has.
  const nlohmann::json& slow = found[section == "data" ? 1 : 2];
  CHECK(slow.at("rank") == 1);
  CHECK(slow.at("section") == section);
  CHECK(slow.at("seconds").get<double>() - slow.at("median_seconds").get<double>() >
        (section == "data" ? 1.5 : 0.1));
}

TEST_CASE("a rank whose weights have another bit is named, and nothing is saved over",
          "[replicas]") {
  const Folder folder;
  Words words = patient_command("run");
  words.insert(words.end(), {"training.global_batch_size=12", "parallelism.check_replicas=4",
                             "precision.plan=te-delayed"});
  Words mpirun = kMpirun;
  mpirun.back() = "3";
  // The save of step 10 is in flight when step 12 ends.
  const Outcome outcome =
      run(folder, mpirun, with_fault("flip@1:11:layers.1.mlp.down.weight", words), 4,
          with_file_fault(folder, "SLOW", "run/checkpoints/step-000010.partial/model", 1));
  CHECK_THAT(outcome.err, Catch::Contains("after step 12 ranks no longer hold the same bits of "
                                          "layers.1.mlp.down.weight: rank 1 (on ") &&
                              Catch::Contains("differ from the other ranks"));
  CHECK(fs::exists(folder / "run" / "checkpoints" / "step-000010"));
  CHECK_FALSE(fs::exists(folder / "run" / "checkpoints" / "step-000015"));
  CHECK_THAT(run(folder, mpirun, words, 0).out, Catch::Contains("step-000010 at step 10"));
}

TEST_CASE("comparing replicas finds nothing in a good run, and changes no bit of it",
          "[replicas]") {
  const std::string plan = GENERATE("te-delayed", "msamp-o2", "te-blockwise", "torchao-rowwise");
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(plan, stage);
  const Folder folder;
  const auto compared = [&](const std::string& name, int interval) {
    Words words = patient_command(name);
    words.insert(words.end(),
                 {"precision.plan=" + plan, "parallelism.zero_stage=" + std::to_string(stage),
                  "parallelism.check_replicas=" + std::to_string(interval)});
    run(folder, kMpirun, words, 0);
    return read_file(folder / name / "checkpoints" / "step-000020" / "model.safetensors");
  };
  CHECK(compared("often", 1) == compared("never", 0));
}

TEST_CASE("a gradient of one rank that is not finite skips the step on all ranks", "[faults]") {
  const Folder folder;
  Words words = patient_command("run");
  words.push_back("parallelism.check_replicas=1");
  run(folder, kMpirun, with_fault("nan@1:3", words), 0);
  const std::string metrics = read_file(folder / "run" / "metrics.jsonl");
  const nlohmann::json first = nlohmann::json::parse(lines_of(metrics).front());
  CHECK(first.at("step") == 5);
  CHECK(first.at("skipped_steps") == 1);
  CHECK_FALSE(first.at("loss").is_null());
}

TEST_CASE("other faults end with their codes, and the run goes on to the same weights",
          "[faults]") {
  const auto [fault, code] =
      GENERATE(std::pair("oom@1:7", 4), std::pair("throw@0:7:data", 1),
               std::pair("exit@1:7:exchange", 1), std::pair("kill@1:10:save", 128 + SIGKILL));
  CAPTURE(fault, code);
  const Folder folder;
  run(folder, kMpirun, with_fault(fault, patient_command("run")), code);
  check_resumed(folder, "run");
}

TEST_CASE("the shipped program knows no faults", "[faults]") {
  const Folder folder;
  const Outcome outcome =
      run_program(folder.path(), with_fault("kill@0:1", patient_command("run")), kEnvironment);
  CHECK(outcome.code == 2);
  CHECK_FALSE(fs::exists(folder / "run"));
}

}  // namespace fp8train::test
