// Two ranks across a switch of the plan (precision.schedule), started by mpirun.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "io/safetensors/safetensors.h"
#include "program.h"

namespace fp8train::test {
namespace {

constexpr long kSteps = 30;
constexpr long kSwitch = 10;  ///< the first stage ends with it
constexpr long kWindow = 4;   ///< of delayed scaling

const Words kEnvironment = {"OMP_NUM_THREADS=1", "OMPI_MCA_mpi_yield_when_idle=1",
                            "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"};

Words mpirun(int ranks) {
  return {FP8TRAIN_MPIRUN,      "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
          std::to_string(ranks)};
}

Words command(const std::string& name, const std::string& second, const std::string& layout,
              long steps = kSteps) {
  return {"model.preset=toy",
          "data.train=[{path: text.txt}]",
          "data.val_fraction=0.1",
          "data.seq_length=32",
          "training.max_steps=" + std::to_string(steps),
          "training.micro_batch_size=2",
          "training.global_batch_size=8",
          "scheduler.type=constant",
          "eval.interval=0",
          "logging.interval=1",
          "logging.format=plain",
          "checkpoint.interval=" + std::to_string(kSwitch + kWindow),
          "checkpoint.keep_last=9",
          "comm.timeout=60",
          "device=cpu",
          layout,
          "precision.plan=te-current",
          "precision.schedule=[{until: " + std::to_string(kSwitch) +
              ", plan: te-current}, {plan: " + second + "}]",
          "output_dir=" + name};
}

Outcome run(const TextFolder& folder, int ranks, const Words& words) {
  Process process(folder.path(), words, kEnvironment, mpirun(ranks));
  Outcome outcome = process.wait();
  CAPTURE(outcome.out, outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome;
}

std::vector<double> losses(const fs::path& run) {
  std::vector<double> found;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("loss")) {
      found.push_back(json.at("loss").get<double>());
    }
  }
  return found;
}

fs::path checkpoint(const TextFolder& folder, const std::string& run, long step) {
  return folder / run / "checkpoints" / fmt::format("step-{:06}", step);
}

std::vector<float> scaling(const fs::path& checkpoint, const std::string& end) {
  std::vector<float> values;
  const SafetensorsFile file(checkpoint / "scaling.safetensors");
  for (const SafetensorsEntry& entry : file.header().entries) {
    if (entry.name.ends_with(end)) {
      std::vector<float> own(entry.bytes() / sizeof(float));
      file.read(entry, own.data());
      values.insert(values.end(), own.begin(), own.end());
    }
  }
  return values;
}

}  // namespace

TEST_CASE("two ranks switch plans at a step, and go on across it from a stop: the same bits") {
  const auto& [second, layout] = GENERATE(std::pair("te-delayed", "parallelism.zero_stage=0"),
                                          std::pair("te-delayed", "parallelism.zero_stage=3"),
                                          std::pair("te-mxfp8", "parallelism.zero_stage=1"),
                                          std::pair("te-delayed", "parallelism.tensor=2"),
                                          std::pair("te-delayed", "parallelism.pipeline=2"));
  CAPTURE(second, layout);
  const TextFolder folder;
  const Outcome outcome = run(folder, 2, command("whole", second, layout));
  CHECK(outcome.out.find(fmt::format("from step {} on: plan {}", kSwitch + 1, second)) !=
        std::string::npos);
  const std::vector<double> all = losses(folder / "whole");
  REQUIRE(all.size() == kSteps);
  for (const double loss : all) {
    CHECK(std::isfinite(loss));
  }
  // Until the switch the second plan has no part in it.
  run(folder, 2, command("other", "bf16", layout));
  const std::vector<double> other = losses(folder / "other");
  CHECK(std::equal(all.begin(), all.begin() + kSwitch, other.begin()));
  CHECK_FALSE(std::equal(all.begin() + kSwitch, all.end(), other.begin() + kSwitch));

  // Stopped in the first stage, and again some steps after the switch.
  Process stopped(folder.path(), command("stopped", second, layout), kEnvironment, mpirun(2));
  REQUIRE(stopped.wait_until([&] { return last_logged_step(folder / "stopped") >= 3; }));
  stopped.send(SIGUSR1);
  REQUIRE(stopped.wait().code == 75);
  REQUIRE(last_logged_step(folder / "stopped") < kSteps);
  run(folder, 2, command("stopped", second, layout));
  int files = 0;
  for (const auto& whole : fs::directory_iterator(checkpoint(folder, "whole", kSteps))) {
    const std::string file = whole.path().filename();
    if (file.ends_with(".safetensors") && !file.starts_with("optimizer")) {
      CAPTURE(file);
      CHECK(same_bytes(checkpoint(folder, "stopped", kSteps) / file, whole));
      ++files;
    }
  }
  CHECK(files > (second == std::string("te-mxfp8") ? 0 : 1));  // scales of blocks are not stored
  CHECK(losses(folder / "stopped") == all);
}

TEST_CASE("a run continues under other pipeline schedules, and on one rank: the same bits") {
  const TextFolder folder;
  const auto pipeline = [&](const std::string& name, int ranks, long steps, const Words& changes) {
    Words words = command(name, "te-delayed", "parallelism.zero_stage=0", steps);
    words.insert(words.end(), {"precision.plan=te-delayed", "precision.schedule=[]",
                               "model.num_hidden_layers=4", "checkpoint.interval=4"});
    words.insert(words.end(), changes.begin(), changes.end());
    run(folder, ranks, words);
  };
  pipeline("whole", 1, 16, {});
  pipeline("parts", 2, 4, {"parallelism.pipeline=2"});
  pipeline("parts", 2, 8,
           {"parallelism.pipeline=2", "parallelism.schedule=interleaved",
            "parallelism.virtual_stages=2"});
  pipeline("parts", 2, 12,
           {"parallelism.pipeline=2", "parallelism.schedule=zero_bubble",
            "parallelism.stage_blocks=[3, 1]"});
  std::ofstream(folder / "order.txt") << "stage 0: F0 F1 B0 F2 F3 W0 B1 B2 W1 B3 W2 W3\n"
                                         "stage 1: F0 B0 F1 W0 F2 B1 B2 F3 B3 W1 W2 W3\n";
  pipeline("parts", 2, 14, {"parallelism.pipeline=2", "parallelism.schedule_file=order.txt"});
  nlohmann::json last;
  for (const std::string& line : lines_of(read_file(folder / "parts" / "metrics.jsonl"))) {
    const nlohmann::json json = nlohmann::json::parse(line);
    last = json.contains("loss") ? json : last;
  }
  for (const char* shares : {"stage_idle", "stage_idle_planned"}) {
    REQUIRE(last.contains(shares));
    CHECK(last.at(shares).size() == 2);
    CHECK(last.at(shares).at("1").get<double>() > 0.0);
    CHECK(last.at(shares).at("1").get<double>() < 1.0);
  }
  pipeline("parts", 1, 16, {});
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "scaling.safetensors"}) {
    CAPTURE(file);
    CHECK(
        same_bytes(checkpoint(folder, "parts", 16) / file, checkpoint(folder, "whole", 16) / file));
  }
}

TEST_CASE("what ranks refuse before they train leaves no folder") {
  const TextFolder folder;
  fs::create_directory(folder / "other");
  fs::copy_file(folder / "text.txt", folder / "other" / "text.txt");
  write_file(folder / "order.txt", "stage 0: F0 F1 B0 B1\nstage 1: F0 B0 F1 B1\n");
  write_file(folder / "other" / "order.txt", "stage 0: F0 B0 F1 B1\nstage 1: F0 B0 F1 B1\n");
  Words launcher = mpirun(2);
  launcher.insert(
      launcher.end(),
      {"/bin/sh", "-c", "test $OMPI_COMM_WORLD_RANK = 0 || cd other; exec \"$0\" \"$@\""});
  Words words = command("run", "te-delayed", "parallelism.pipeline=2");
  words.insert(words.end(),
               {"precision.plan=te-delayed", "precision.schedule=[]",
                "training.global_batch_size=4", "parallelism.schedule_file=order.txt"});
  const Outcome outcome = Process(folder.path(), words, kEnvironment, launcher).wait();
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.err, Catch::Contains("rank 0 -> rank 1: the content of "
                                          "parallelism.schedule_file"));
  Words short_model = command("run", "te-delayed", "parallelism.pipeline=2");
  short_model.emplace_back("model.num_hidden_layers=1");
  const Outcome refused = Process(folder.path(), short_model, kEnvironment, mpirun(2)).wait();
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Catch::Contains("parallelism.pipeline is 2, and the model has 1 block"));
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("a window of delayed scaling begins at the switch") {
  const TextFolder folder;
  run(folder, 2, command("run", "te-delayed", "parallelism.zero_stage=0"));
  const fs::path saved = checkpoint(folder, "run", kSwitch + kWindow);
  const std::vector<float> history = scaling(saved, ".amax_history");
  const std::vector<float> scales = scaling(saved, ".scale");
  REQUIRE(scales.size() > 10);
  const auto entries =
      std::count_if(history.begin(), history.end(), [](float amax) { return amax > 0; });
  // A step has two micro-batches of each rank: x and dy of a layer have an entry for each, its
  // weight, which is cast once, has one.
  const auto layers = static_cast<long>(scales.size()) / 3;
  CHECK(entries == (2 + 2 + 1) * kWindow * layers);
  for (const float scale : scales) {
    CHECK(scale > 1);  // of a new window: 1
  }
}

}  // namespace fp8train::test
