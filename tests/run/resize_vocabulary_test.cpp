// model.resize_vocabulary: the tokens that are added to a model, and runs that go on with them.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/safetensors/tensor_source.h"
#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

constexpr int64_t kBefore = 258;  // of the tokenizer of bytes
constexpr int64_t kAfter = 300;

class Workshop {
 public:
  explicit Workshop(const Words& model) {
    Words words = command("first", {"training.max_steps=2"});
    words.insert(words.end(), model.begin(), model.end());
    expect_code(0, path(), words);
  }

  const fs::path& path() const { return folder_.path(); }
  static fs::path model() { return "first/checkpoints/step-000002"; }

  static Words command(const std::string& name, const Words& more) {
    Words words = {"train",
                   "data.train=[{path: text.txt}]",
                   "data.seq_length=16",
                   "training.micro_batch_size=2",
                   "scheduler.warmup_steps=0",
                   "threads=1",
                   "output_dir=" + name};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Continues with more tokens.
  static Words grown(const std::string& name, const Words& more = {}) {
    Words words = command(name, {"model.from=" + model().string(),
                                 "model.resize_vocabulary=" + std::to_string(kAfter)});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

 private:
  TextFolder folder_;
};

std::vector<float> table_of(const TensorSource& source, const std::string& name) {
  REQUIRE(source.find(name) != nullptr);
  return source.read_f32(name, source.find(name)->shape);
}

void check_table(const fs::path& before, const fs::path& after, const std::string& name) {
  CAPTURE(name);
  const std::vector<float> old = table_of(TensorSource(before), name);
  const std::vector<float> grown = table_of(TensorSource(after), name);
  const size_t width = old.size() / kBefore;
  REQUIRE(grown.size() == width * kAfter);
  CHECK(std::equal(old.begin(), old.end(), grown.begin()));
  for (size_t column = 0; column < width; ++column) {
    double mean = 0.0;
    for (size_t row = 0; row < kBefore; ++row) {
      mean += static_cast<double>(old[row * width + column]) / kBefore;
    }
    for (size_t row = kBefore; row < kAfter; ++row) {
      REQUIRE(static_cast<double>(grown[row * width + column]) == Approx(mean).margin(1e-9));
    }
  }
}

TEST_CASE("added tokens begin as the mean of the others, in embedding and head") {
  const bool tied = GENERATE(true, false);
  CAPTURE(tied);
  const Workshop shop(
      {"model.preset=toy", std::string("model.tie_word_embeddings=") + (tied ? "true" : "false")});
  expect_code(0, shop.path(),
              Workshop::grown("still", {"training.max_steps=1", "optimizer.lr=1e-30"}));
  const fs::path before = shop.path() / Workshop::model();
  const fs::path after = shop.path() / "still/checkpoints/step-000001";
  check_table(before, after, "model.embed_tokens.weight");
  if (!tied) {
    check_table(before, after, "lm_head.weight");
  }
  const auto config = nlohmann::json::parse(read_file(after / "config.json"));
  CHECK(config["vocab_size"] == kAfter);
}

TEST_CASE("a run with added tokens resumes with the bits of an undisturbed one") {
  const Workshop shop({"model.preset=toy"});
  const Words more = {"training.max_steps=4", "checkpoint.interval=2"};
  expect_code(0, shop.path(), Workshop::grown("whole", more));
  expect_code(0, shop.path(), Workshop::grown("cut", more));
  fs::remove_all(shop.path() / "cut/checkpoints/step-000004");
  const Outcome resumed = expect_code(0, shop.path(), Workshop::grown("cut", more));
  CHECK_THAT(resumed.out + resumed.err, Contains("at step 2"));
  for (const char* file : {"model.safetensors", "config.json"}) {
    CHECK(same_bytes(shop.path() / "whole/checkpoints/step-000004" / file,
                     shop.path() / "cut/checkpoints/step-000004" / file));
  }
  expect_code(0, shop.path(), {"eval", "--checkpoint", "cut", "--data", "text.txt"});
}

TEST_CASE("a vocabulary does not shrink, and only that of a folder grows") {
  const Workshop shop({"model.preset=toy"});
  const std::string from = "model.from=" + Workshop::model().string();
  const auto refusal = [&](const Words& more) {
    return expect_code(2, shop.path(), Workshop::command("none", more)).err;
  };
  CHECK_THAT(refusal({from, "model.resize_vocabulary=200", "training.max_steps=1"}),
             Contains("model.resize_vocabulary is 200") && Contains("has 258 tokens") &&
                 Contains("tokens are only added"));
  CHECK_THAT(refusal({"model.preset=toy", "model.resize_vocabulary=300", "training.max_steps=1"}),
             Contains("adds tokens to the model of model.from"));
}

}  // namespace
}  // namespace fp8train::test
