// A run one of whose allocations fails (support/failing_allocations) ends with code 4 and a
// message, or as if nothing had happened, and goes on to the same bits.

#include <fmt/format.h>

#include <charconv>

#include "program.h"
#include "share.h"

namespace fp8train::test {
namespace {

const Words kCommand = {"model.preset=toy",          "data.train=[{path: ../text.txt}]",
                        "data.val_fraction=0.1",     "data.seq_length=16",
                        "training.max_steps=2",      "training.micro_batch_size=1",
                        "eval.interval=2",           "eval.batches=1",
                        "sample.interval=0",         "logging.interval=1",
                        "checkpoint.interval=1",     "threads=1",
                        "precision.plan=te-delayed", "output_dir=run"};

Outcome run_with(const fs::path& folder, long call, const fs::path& log = {}) {
  fs::create_directories(folder);
  Words environment = {fmt::format("LD_PRELOAD={}", FP8TRAIN_FAILING_ALLOCATIONS),
                       "GOMP_SPINCOUNT=1000",  // else the program starts itself again
                       fmt::format("FP8TRAIN_ALLOCATION={}", call)};
  if (!log.empty()) environment.push_back("FP8TRAIN_ALLOCATION_LOG=" + log.string());
  Process process(folder, kCommand, environment);
  return process.wait();
}

}  // namespace

TEST_CASE("every allocation of a run may fail") {
  const TextFolder folder(small_text(2000));
  const fs::path log = folder / "allocations";
  const fs::path final_weights = fs::path("run/checkpoints/step-000002/model.safetensors");
  REQUIRE(run_with(folder / "whole", 0, log).code == 0);
  long allocations = 0;
  const std::string text = read_file(log);
  std::from_chars(text.data(), text.data() + text.size(), allocations);
  REQUIRE(allocations > 1000);
  constexpr size_t kEvery = 401;  // a prime: a loop of the program is not met at the same place
  const Share share = Share::of_environment(kEvery);
  size_t failed = 0;
  size_t ignored = 0;
  for (long call = 1; call <= allocations; ++call) {
    if (!share.has(static_cast<size_t>(call))) continue;
    fs::remove_all(folder / "some");
    const Outcome outcome = run_with(folder / "some", call);
    INFO("allocation " << call << ": code " << outcome.code << "\n" << outcome.out << outcome.err);
    CHECK((outcome.code == 4 || outcome.code == 0));
    (outcome.code == 0 ? ignored : failed) += 1;
    if (outcome.code != 0) {
      CHECK_THAT(outcome.err, Catch::Contains("error: "));
      if (failed % 8 != 0) continue;
      REQUIRE(run_program(folder / "some", kCommand).code == 0);
    }
    CHECK(same_bytes(folder / "whole" / final_weights, folder / "some" / final_weights));
  }
  fmt::print("{} allocations; of those that failed {} ended the run with a message, {} did not\n",
             allocations, failed, ignored);
}

}  // namespace fp8train::test
