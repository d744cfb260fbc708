// Runs whose length is given in epochs.

#include <fmt/format.h>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

constexpr uintmax_t kLength = 32;
constexpr uintmax_t kSamplesOfStep = 4;

Words run_of(const std::string& name, const std::string& length, const Words& more = {}) {
  Words words = {"model.preset=toy",
                 "data.train=text.txt",
                 fmt::format("data.seq_length={}", kLength),
                 "training.micro_batch_size=2",
                 "training.gradient_accumulation_steps=2",
                 "scheduler.type=linear",
                 "scheduler.min_lr=0",
                 "checkpoint.keep_last=9",
                 "logging.interval=1",
                 "threads=1",
                 "precision.plan=bf16",
                 "output_dir=" + name,
                 length};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words command(const std::string& name, Words words) {
  words.insert(words.begin(), name);
  return words;
}

/// About 21 samples: no whole number of steps.
class SmallText : public TextFolder {
 public:
  SmallText() : TextFolder(small_text(710)) {
    samples_ = (fs::file_size(*this / "text.txt") - kLength) / kLength;
  }
  uintmax_t samples() const { return samples_; }
  /// Steps of this many epochs.
  uintmax_t steps(uintmax_t epochs) const {
    return (epochs * samples_ + kSamplesOfStep - 1) / kSamplesOfStep;
  }
  fs::path model(const std::string& run, uintmax_t step) const {
    return *this / fmt::format("{}/checkpoints/step-{:06}/model.safetensors", run, step);
  }

 private:
  uintmax_t samples_;
};

TEST_CASE("a run of two epochs ends with the step that finishes the second") {
  const SmallText folder;
  REQUIRE(2 * folder.samples() % kSamplesOfStep != 0);
  const uintmax_t two = folder.steps(2);
  const Outcome done = expect_code(0, folder.path(), run_of("two", "training.max_epochs=2"));
  CHECK_THAT(done.out, Contains(fmt::format("steps   {} of 128 tokens (2 x 2 x 32): 2 epochs of {} "
                                            "samples",
                                            two, folder.samples())));
  CHECK_THAT(done.out, Contains(fmt::format("done: {} steps, ", two)));
  CHECK(last_logged_step(folder / "two") == static_cast<long>(two));
  // The schedule has the same number of steps.
  expect_code(0, folder.path(), run_of("steps", fmt::format("training.max_steps={}", two)));
  CHECK(same_bytes(folder.model("two", two), folder.model("steps", two)));

  const Outcome again = expect_code(0, folder.path(), run_of("two", "training.max_epochs=2"));
  CHECK_THAT(again.out,
             Contains("nothing to do") && Contains("raise training.max_epochs to train"));
}

TEST_CASE("a run goes on to more epochs") {
  const SmallText folder;
  expect_code(0, folder.path(), run_of("run", "training.max_epochs=2"));
  const Outcome more = expect_code(0, folder.path(), run_of("run", "training.max_epochs=3"));
  CHECK_THAT(more.out, Contains("resumed from run/checkpoints/step-") &&
                           Contains("changed since then: training.max_epochs"));
  CHECK(last_logged_step(folder / "run") == static_cast<long>(folder.steps(3)));
  const Outcome fewer = expect_code(0, folder.path(), run_of("run", "training.max_epochs=0.5"));
  CHECK_THAT(fewer.out, Contains("nothing to do"));
  // Other steps than those that the epochs were counted in.
  const Outcome larger = expect_code(
      0, folder.path(), run_of("run", "training.max_epochs=9", {"training.micro_batch_size=4"}));
  CHECK_THAT(larger.err, Contains("training.max_epochs is worked out as if all were of the new"));
}

TEST_CASE(
    "check knows the steps of a part of an epoch, estimate and explain say that they do not") {
  const SmallText folder;
  const Words words = run_of("run", "training.max_epochs=0.5");
  const std::string checked = expect_code(0, folder.path(), command("check", words)).out;
  CHECK_THAT(checked, Contains(fmt::format("steps   {} of 128 tokens (2 x 2 x 32): 0.5 epochs of",
                                           (folder.samples() + 7) / 8)));
  for (const char* name : {"estimate", "explain"}) {
    Words absent = command(name, words);
    absent.emplace_back("data.train=absent.txt");
    const Outcome outcome = expect_code(0, folder.path(), absent);
    CHECK_THAT(outcome.out + outcome.err,
               Contains("training.max_epochs: the number of steps follows from the data"));
  }
  // Where stages have numbers, explain reads the data.
  const Words stages = command("explain", run_of("run", "training.max_epochs=2",
                                                 {"precision.plan=te-current",
                                                  "precision.schedule=[{until: 0.5, plan: bf16}, "
                                                  "{plan: te-current}]"}));
  CHECK_THAT(expect_code(0, folder.path(), stages).out,
             Contains(fmt::format("In steps 1 to {} of {} no GEMM", folder.steps(2) / 2,
                                  folder.steps(2))));
}

}  // namespace
}  // namespace fp8train::test
