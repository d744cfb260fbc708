// Runs of which a rank stops, hangs or is slow: they end with exit code 86 and name it.

#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "faulty.h"

namespace fp8train::test {
namespace {

constexpr double kLimit = 4;  // seconds that a section and a wait may take

Words command(const std::string& name, const Words& more = {}) {
  Words words = toy_run(name, {"comm.timeout=" + std::to_string(kLimit)});
  for (const char* const section : {"start_up", "data", "step", "evaluation", "save", "end"}) {
    words.push_back(std::string("watchdog.") + section + "=" + std::to_string(kLimit));
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
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

}  // namespace

TEST_CASE("a rank that is stopped is named, and the others end") {
  struct Case {
    int rank;
    int step;
    const char* section;
  };
  const auto [rank, step, section] = GENERATE(
      Case{1, 0, "start_up"}, Case{1, 3, "data"}, Case{0, 8, "step"}, Case{1, 7, "exchange"},
      Case{0, 10, "save"}, Case{1, 10, "save"}, Case{1, 10, "evaluation"}, Case{0, 20, "end"});
  CAPTURE(rank, step, section);
  const TextFolder folder;
  const std::string fault =
      "stop@" + std::to_string(rank) + ":" + std::to_string(step) + ":" + section;
  const Words words = command("run", {"watchdog.start_up=60"});  // longer than MPI may take
  const Outcome outcome = run_faulty(folder, mpirun(), with_fault(fault, words), 86);
  CAPTURE(outcome.err);
  if (step == 0) {  // before the ranks have met nobody knows the others, nor a run directory
    CHECK_THAT(outcome.err, Catch::Contains("starting MPI") && Catch::Contains("in start_up for"));
  } else {
    const nlohmann::json record = flight_record(folder / "run", 1 - rank);
    CHECK(record.at("other_ranks").at(0).at("process_state") == "stopped");
    CHECK(record.at("step") == step);
    CHECK(record.at("seconds") >= kLimit * 0.9);
    CHECK(record.at("seconds") < kLimit * 2);
    const size_t operations = record.at("operations").size();
    CHECK((operations > 10 && operations <= 64));
    CHECK_THAT(outcome.err, Catch::Contains("Others: rank " + std::to_string(rank) + " (process") &&
                                Catch::Contains(", stopped). More in"));
    check_no_process(record);
    check_no_process(record.at("other_ranks").at(0));
  }
  check_resumed(folder, "run");
}

TEST_CASE("a rank that hangs says so itself") {
  const TextFolder folder;
  const Outcome outcome = run_faulty(
      folder, mpirun(), with_fault("hang@1:7:data", command("run", {"comm.timeout=60"})), 86);
  CAPTURE(outcome.err);
  CHECK_THAT(outcome.err, Catch::Contains("watchdog: data took longer than") &&
                              Catch::Contains("Rank 1 (process") &&
                              Catch::Contains("step 7, in data for"));
  const nlohmann::json record = flight_record(folder / "run", 1);
  CHECK(record.at("section") == "data");
  CHECK(record.at("waits_for").is_null());
  check_resumed(folder, "run");
}

TEST_CASE("a single rank that hangs ends too") {
  const char* const section = GENERATE("start_up", "data", "step", "evaluation", "save", "end");
  CAPTURE(section);
  const std::string step = section == std::string("start_up") ? "0"
                           : section == std::string("end")    ? "20"
                                                              : "10";
  const TextFolder folder;
  Words words = with_fault("hang@0:" + step + ":" + section, command("run"));
  words.push_back(std::string("watchdog.") + section + "=0.5");
  const Outcome outcome = run_faulty(folder, {}, words, 86);
  CHECK_THAT(outcome.err,
             Catch::Contains(std::string("watchdog: ") + section + " took longer than 0.5 s"));
}

TEST_CASE("before the ranks have met, a rank that hangs has its launcher's number") {
  const auto [number, rank] =
      GENERATE(std::pair("3", 3), std::pair("-1", 0), std::pair("99999999999", 0));
  const TextFolder folder;
  fs::create_directory(folder / "run");
  Words words = with_fault("hang@0:0:start_up", command("run"));
  words.emplace_back("watchdog.start_up=0.3");
  Words environment = rank_environment();
  environment.push_back(std::string("PMI_RANK=") + number);
  const Outcome outcome = run_faulty(folder, {}, words, 86, environment);
  CHECK_THAT(outcome.err, Catch::Contains("Rank " + std::to_string(rank) + " (process"));
  const nlohmann::json record = flight_record(folder / "run", rank);
  CHECK(record.at("rank") == rank);
  CHECK(record.at("ranks").is_null());
  CHECK(record.at("other_ranks").empty());
}

TEST_CASE("a thread that hangs while it writes a checkpoint ends the run at the next save") {
  const bool alone = GENERATE(true, false);
  CAPTURE(alone);
  const TextFolder folder;
  const Outcome outcome =
      run_faulty(folder, alone ? Words() : mpirun(), command("run", {"comm.timeout=60"}), 86,
                 with_file_fault(folder, "HANG", "run/checkpoints/step-000010.partial/model", 1));
  CHECK_THAT(outcome.err, Catch::Contains("watchdog: save took longer than 4 s. Rank 0 (process") &&
                              Catch::Contains("): step 15, in save for"));
  const nlohmann::json record = flight_record(folder / "run", 0);
  CHECK(record.at("section") == "save");
  CHECK(record.at("other_ranks").size() == (alone ? 0 : 1));
  CHECK(fs::exists(folder / "run" / "checkpoints" / "step-000005"));
  CHECK_FALSE(fs::exists(folder / "run" / "checkpoints" / "step-000010"));
  if (!alone) {
    check_resumed(folder, "run");
  }
}

/// From the middle of the run on no call on its files returns: neither the flight record's.
TEST_CASE("a disk that no longer answers ends the run with a report all the same") {
  const TextFolder folder;
  run_faulty(folder, {}, toy_run("whole"), 0,
             with_file_fault(folder, "", "whole/", 0, folder / "calls"));
  const size_t calls = lines_of(read_file(folder / "calls")).size();
  REQUIRE(calls > 100);
  const Outcome outcome =
      run_faulty(folder, {}, command("run"), 86,
                 with_file_fault(folder, "HANG", "run/", static_cast<long>(calls / 2)));
  CHECK_THAT(outcome.err, Catch::Contains("error: watchdog: ") &&
                              Catch::Contains("Rank 0 (process") &&
                              Catch::Contains(". No flight record: run does not answer"));
  CHECK_FALSE(fs::exists(folder / "run" / "flight-00000.json"));
}

TEST_CASE("a limit of 0 is none, and a slow rank is no hanging one") {
  const TextFolder folder;
  run_faulty(folder, {},
             with_fault("slow@0:18:data/2500",
                        command("run", {"watchdog.data=0", "watchdog.step=2", "watchdog.save=4"})),
             0);
}

/// Four seconds in a section that may take three; in two and a half of them the process is stopped.
TEST_CASE("the time in which a process is stopped does not count") {
  const TextFolder folder;
  Words words = command("run", {"training.max_steps=5", "training.global_batch_size=2",
                                "logging.interval=1", "eval.interval=0", "watchdog.data=3"});
  Process process(folder.path(), with_fault("slow@0:5:data/4000", words), rank_environment(), {},
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
  const TextFolder folder;
  const std::string section = GENERATE("data", "evaluation");
  const std::string milliseconds = section == "data" ? "/200" : "/1500";
  run_faulty(folder, mpirun(), with_fault("slow@1:1:" + section + milliseconds, command("run")), 0);
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
  CHECK(slow.at("seconds").get<double>() - slow.at("median_seconds").get<double>() > 1.0);
}

}  // namespace fp8train::test
