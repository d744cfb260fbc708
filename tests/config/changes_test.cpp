
#include <catch2/catch.hpp>

#include "config/load.h"
#include "config/show.h"

using namespace fp8train;

namespace {

std::string resolved(const std::vector<std::string>& sets) {
  LoadRequest request = {.path = "run.yaml",
                         .sets = sets,
                         .env = "",
                         .text =
                             "model: {preset: toy}\n"
                             "data: {train: [{path: a.txt}], tokenizer: char, seq_length: 64}\n"
                             "training: {max_steps: 10, micro_batch_size: 4}\n"};
  return show_settings(load_settings(request), true);
}

}  // namespace

TEST_CASE("equal settings have no changes", "[config]") {
  CHECK(changed_settings(resolved({}), resolved({})).empty());
}

TEST_CASE("each changed key is named with both values", "[config]") {
  const auto changes = changed_settings(
      resolved({"optimizer.lr=1e-3"}),
      resolved({"optimizer.lr=5e-4", "training.max_steps=20", "optimizer.betas=[0.8, 0.99]"}));
  REQUIRE(changes.size() == 3);
  CHECK(std::find(changes.begin(), changes.end(), "optimizer.lr: 0.001 -> 0.0005") !=
        changes.end());
  CHECK(std::find(changes.begin(), changes.end(), "training.max_steps: 10 -> 20") != changes.end());
  CHECK(std::any_of(changes.begin(), changes.end(), [](const std::string& change) {
    return change.starts_with("optimizer.betas: [") && change.ends_with("-> [0.8, 0.99]");
  }));
}

TEST_CASE("what does not touch the training is not a change", "[config]") {
  CHECK(changed_settings(resolved({"output_dir=a", "threads=1"}),
                         resolved({"output_dir=b", "threads=2", "logging.interval=3"}))
            .empty());
}

TEST_CASE("a key that is set now, and one that is not any more", "[config]") {
  const auto changes = changed_settings("a: {b: 1}\n", "a: {c: 2}\n");
  CHECK(changes == std::vector<std::string>{"a.c: not set -> 2", "a.b: 1 -> not set"});
  CHECK(changed_settings("not: [yaml", "a: 1\n") == std::vector<std::string>{"a: not set -> 1"});
}
