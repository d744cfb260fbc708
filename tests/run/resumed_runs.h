#pragma once
// Runs of a toy model that are killed, stopped and resumed, and the comparison of their ends.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "program.h"

namespace fp8train::test {

constexpr long kSteps = 40;  // kills come early enough that no machine finishes before them
inline constexpr const char* kFinal = "step-000040";

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
inline std::string timeless_metrics(const fs::path& run) {
  std::string text;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    nlohmann::ordered_json object = nlohmann::ordered_json::parse(line);
    if (object.contains("saved")) {
      continue;
    }
    for (const char* timed : {"tokens_per_second", "seconds_per_step", "tflops", "mfu",
                              "speed_of_light", "time", "memory_bytes", "stage_idle"}) {
      object.erase(timed);
    }
    text += object.dump() + "\n";
  }
  return text;
}

/// Training losses, step by step.
inline std::vector<double> logged_losses(const fs::path& run) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.contains("loss")) {
      losses.push_back(object.at("loss").get<double>());
    }
  }
  return losses;
}

inline void check_equal_runs(const Workshop& shop, const std::string& a, const std::string& b) {
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
inline void kill_after(const Workshop& shop, const Words& command, const std::string& name,
                       long step, unsigned extra_microseconds) {
  Process process(shop.folder(), command);
  const bool reached = process.wait_until([&] { return last_logged_step(shop.run(name)) >= step; });
  if (!reached) {
    FAIL("step " << step << " was not seen: " << process.wait().err);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(extra_microseconds));
  process.send(SIGKILL);
  REQUIRE(process.wait().code == 128 + SIGKILL);
}

}  // namespace fp8train::test
