// Ranks that diverge: they agree on it and go back together.

#include <nlohmann/json.hpp>

#include "diverging_runs.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

const Words kEnvironment = {"OMP_NUM_THREADS=1", "OMPI_MCA_mpi_yield_when_idle=1",
                            "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"};
const Words kTwoRanks = {
    FP8TRAIN_MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"};

}  // namespace

TEST_CASE("ranks go back together, and a killed run of ranks ends with the same bits") {
  const std::string layout = GENERATE("zero_stage=0", "zero_stage=3", "tensor=2", "pipeline=2");
  CAPTURE(layout);
  const DivergingFolder folder;
  const auto words = [&](const std::string& name) {
    return command(name, {"parallelism." + layout, "comm.timeout=60", "device=cpu"});
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
  const DivergingFolder folder;
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

}  // namespace fp8train::test
