// A model that others trained: stories260K (https://huggingface.co/karpathy/tinyllamas, MIT; in
// tests/golden/run/stories260K as a folder of Hugging Face with its licence) writes the text that
// its authors published, and its loss hardly changes in lower precision.

#include <nlohmann/json.hpp>

#include "program.h"

namespace fp8train::test {
namespace {

const fs::path kModel = fs::path(FP8TRAIN_GOLDEN_DIR) / "run/stories260K";

class Stories {
 public:
  const fs::path& folder() const { return folder_.path(); }

  std::string greedy(const std::string& tokens, const std::string& prompt) const {
    return expect_code(0, folder(),
                       {"generate", "--checkpoint", kModel.string(), "--temperature", "0",
                        "--max-new-tokens", tokens, "--prompt", prompt, "--threads", "1"})
        .out;
  }

  double loss(const std::string& plan) const {
    const Outcome outcome =
        expect_code(0, folder(),
                    {"eval", "--checkpoint", kModel.string(), "--data", "story.txt", "--plan", plan,
                     "--seq-length", "128", "--json", "--threads", "1"});
    const auto json = nlohmann::json::parse(outcome.out);
    CHECK(json.at("plan") == plan);
    return json.at("loss");
  }

 private:
  TempDir folder_;
};

std::string golden(const char* name) {
  return read_file(fs::path(FP8TRAIN_GOLDEN_DIR) / "run" / name);
}

TEST_CASE("stories260K writes its published text") {
  const Stories stories;
  const std::string published = golden("stories260K.txt");
  const std::string short_text = stories.greedy("120", "");
  CHECK(short_text == golden("stories260K_120.txt"));
  CHECK(published.starts_with(short_text.substr(0, short_text.size() - 1)));
  CHECK(stories.greedy("256", "").starts_with(published.substr(0, published.size() - 1)));
  // A prompt that is the beginning of the story leads to the same story.
  CHECK(stories.greedy("40", "Once upon a time, there was a little")
            .starts_with(
                "Once upon a time, there was a little girl named Lily. She loved to play outside"));
}

TEST_CASE("stories260K loses little in lower precision") {
  const Stories stories;
  write_file(stories.folder() / "story.txt", golden("story.txt"));
  const double exact = stories.loss("fp32");
  CHECK(exact > 1.0);
  CHECK(exact < 2.2);  // random weights: ln 512 = 6.24
  WARN("stories260K on tests/golden/run/story.txt, fp32: " << exact);
  for (const char* plan : {"bf16", "fp16", "te-delayed", "te-current", "te-blockwise", "te-mxfp8",
                           "msamp-o1", "msamp-o3", "torchao-rowwise", "fp8-lm", "deepseek-v3",
                           "coat", "fp8-lean", "fp8-min", "int8-qat"}) {
    const double loss = stories.loss(plan);
    WARN(plan << ": " << loss << " (" << 100 * (loss / exact - 1) << " %)");
    CHECK(loss == Approx(exact).epsilon(0.02));
    CHECK(loss != exact);
  }
}

TEST_CASE("a tokenizer that is not the weights' own is reported") {
  const Stories stories;
  write_file(stories.folder() / "story.txt", golden("story.txt"));
  const auto train = [&](const std::string& name, const std::string& tokenizer) {
    return expect_code(
        0, stories.folder(),
        {"model.from=" + kModel.string(), "data.train=[{path: story.txt}]", "data.val_fraction=0.2",
         "data.seq_length=32", "data.tokenizer=" + tokenizer, "training.max_steps=1",
         "training.micro_batch_size=2", "output_dir=run-" + name});
  };
  const char* const note = "not the tokenizer that these weights were trained with";
  const Outcome other = train("byte", "byte");
  CHECK_THAT(other.out + other.err, Catch::Contains(note));
  const Outcome own = train("own", kModel.string());
  CHECK_THAT(own.out + own.err, !Catch::Contains(note));
}

}  // namespace
}  // namespace fp8train::test
