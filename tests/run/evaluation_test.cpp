// `fp8train eval` against lm-evaluation-harness and transformers (tests/golden/make_evaluation.py).

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

const fs::path kGolden = FP8TRAIN_GOLDEN_DIR;
const fs::path kFolder = kGolden / "evaluation";

Words eval(const Words& more) {
  Words words = {"eval",
                 "--checkpoint",
                 (kFolder / "model").string(),
                 "--tokenizer",
                 (kGolden / "tokenizers/llama3/tokenizer.json").string(),
                 "--threads",
                 "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

nlohmann::json expected() {
  return nlohmann::json::parse(read_file(kFolder / "expected.json"));
}

TEST_CASE("log-likelihoods of choices and answers are the harness's") {
  const TempDir dir;
  const std::string out = expect_code(0, dir.path(),
                                      eval({"--choices", (kFolder / "questions.jsonl").string(),
                                            "--samples", "samples.jsonl", "--json"}))
                              .out;
  const nlohmann::json questions = expected().at("questions");
  const std::vector<std::string> lines = lines_of(read_file(dir / "samples.jsonl"));
  REQUIRE(lines.size() == questions.size());
  std::map<std::string, double> right;
  for (size_t i = 0; i < lines.size(); ++i) {
    CAPTURE(i);
    const nlohmann::json line = nlohmann::json::parse(lines[i]);
    const nlohmann::json& question = questions[i];
    const auto values = line.at("log_likelihoods").get<std::vector<double>>();
    REQUIRE(values.size() == question.at("log_likelihoods").size());
    for (size_t c = 0; c < values.size(); ++c) {
      CHECK(values[c] == Approx(question.at("log_likelihoods")[c].get<double>()).epsilon(1e-5));
    }
    for (const char* measure : {"acc", "acc_norm", "acc_bytes"}) {
      CHECK(line.at(measure) == question.at(measure));
      right[measure] += question.at(measure) == line.at("gold") ? 1 : 0;
    }
  }
  const nlohmann::json summary = nlohmann::json::parse(out);
  CHECK(summary.at("questions") == lines.size());
  for (const auto& [measure, count] : right) {
    CHECK(summary.at(measure).get<double>() == Approx(count / static_cast<double>(lines.size())));
  }
}

TEST_CASE("the loss of a text in windows that overlap is transformers'") {
  const TempDir dir;
  const nlohmann::json text = expected().at("text");
  const std::string out =
      expect_code(0, dir.path(),
                  eval({"--data", (kFolder / "text.txt").string(), "--seq-length",
                        std::to_string(text.at("window").get<int>()), "--stride",
                        std::to_string(text.at("stride").get<int>()), "--json"}))
          .out;
  const nlohmann::json result = nlohmann::json::parse(out);
  CHECK(result.at("tokens") == text.at("tokens"));
  CHECK(result.at("bytes") == text.at("bytes"));
  CHECK(result.at("loss").get<double>() == Approx(text.at("loss").get<double>()).epsilon(1e-5));
  CHECK(result.at("bits_per_byte").get<double>() ==
        Approx(text.at("bits_per_byte").get<double>()).epsilon(1e-5));
}

TEST_CASE("eval says what its options are for, and what does not fit") {
  const TempDir dir;
  write_file(dir / "long.jsonl", R"({"context": "a", "choices": ["b", ")" + std::string(2000, 'x') +
                                     R"("], "gold": 0})");
  const std::string questions = (kFolder / "questions.jsonl").string();
  CHECK_THAT(expect_code(2, dir.path(), eval({})).err, Contains("--data FILE"));
  CHECK_THAT(expect_code(2, dir.path(), eval({"--choices", questions, "--plan", "nope"})).err,
             Contains("error: --plan: no plan 'nope'"));
  CHECK_THAT(expect_code(2, dir.path(), eval({"--data", "a", "--choices", "b"})).err,
             Contains("--choices FILE"));
  CHECK_THAT(expect_code(2, dir.path(), eval({"--choices", questions, "--stride", "3"})).err,
             Contains("--stride is for --data"));
  CHECK_THAT(expect_code(2, dir.path(),
                         eval({"--data", (kFolder / "text.txt").string(), "--stride", "49"}))
                 .err,
             Contains("--stride 49 is longer than the windows of 48"));
  CHECK_THAT(expect_code(3, dir.path(), eval({"--choices", "long.jsonl"})).err,
             Contains("long.jsonl:1: choice ") && Contains("expected 1 to 48"));
  const std::string delayed =
      expect_code(0, dir.path(),
                  eval({"--choices", questions, "--plan", "te-delayed", "--calibrate", "2"}))
          .out;
  CHECK_THAT(delayed, Contains("te-delayed: 8 questions, acc "));
}

TEST_CASE("a plan with other histories than the checkpoint's begins its scales anew") {
  const TextFolder folder;
  expect_code(
      0, folder.path(),
      {"model.preset=toy", "data.train=text.txt", "data.seq_length=32", "training.max_steps=2",
       "precision.plan=te-delayed", "fp8.amax_history_len=4", "device=cpu", "output_dir=run"});
  const auto loss = [&](const char* plan, const Words& more = {}) {
    Words words = {"eval", "run", "--data", "text.txt", "--plan", plan, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = expect_code(0, folder.path(), words);
    CHECK((outcome.err.find("step-000002: its scales are of other layers or histories") !=
           std::string::npos) == (plan != std::string("bf16")));
    return nlohmann::json::parse(outcome.out).at("loss").get<double>();
  };
  CHECK(loss("te-delayed") == Approx(loss("bf16")).epsilon(5e-3));
  CHECK(loss("te-delayed", {"--calibrate", "1"}) != loss("te-delayed", {"--calibrate", "0"}));
  CHECK_THAT(expect_code(2, folder.path(), {"generate", "run", "--plan", "te-delayed"}).err,
             Contains("holds no scales for it"));
}

TEST_CASE("of a prepared folder the validation files are evaluated") {
  const TempDir dir;
  expect_code(0, dir.path(),
              {"data", "prepare", (kFolder / "text.txt").string(), "--tokenizer",
               (kGolden / "tokenizers/llama3/tokenizer.json").string(), "--out", "shards",
               "--val-fraction", "0.3"});
  const auto loss = [&](const char* data) {
    return expect_code(0, dir.path(), eval({"--data", data, "--json"})).out;
  };
  CHECK(loss("shards") == loss("shards/val_000000.bin"));
  CHECK(loss("shards") != loss("shards/train_000000.bin"));
}

TEST_CASE("answers that cannot be written are an error before the evaluation") {
  const TempDir dir;
  const Outcome outcome = expect_code(4, dir.path(),
                                      eval({"--choices", (kFolder / "questions.jsonl").string(),
                                            "--samples", "none/samples.jsonl"}));
  CHECK_THAT(outcome.err, Contains("none/samples.jsonl"));
  CHECK(outcome.out.empty());
}

}  // namespace
}  // namespace fp8train::test
