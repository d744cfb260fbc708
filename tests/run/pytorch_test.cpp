// The program from the command line against PyTorch: the same folder written by transformers, the
// same token file, the losses of every step (tests/golden/make_cli.py).

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "program.h"

namespace fp8train::test {
namespace {

using Json = nlohmann::json;

std::string number(const Json& json, const char* key) {
  return json.at(key).dump();
}

std::vector<Json> step_lines(const fs::path& run) {
  std::vector<Json> lines;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    Json object = Json::parse(line);
    if (object.contains("loss")) {
      lines.push_back(std::move(object));
    }
  }
  return lines;
}

void run_from_folder(const fs::path& where, const std::string& model, const Json& expected,
                     const std::string& plan) {
  const fs::path golden = FP8TRAIN_GOLDEN_DIR;
  write_file(
      where / "run.yaml",
      fmt::format(
          "model: {{from: {}}}\n"
          "data: {{train: [{{path: {}}}], tokenizer: none, seq_length: {}, shuffle: false}}\n"
          "training: {{max_steps: {}, micro_batch_size: {}, gradient_accumulation_steps: {}}}\n"
          "optimizer: {{name: adamw, lr: {}, betas: {}, eps: {}, weight_decay: {}, "
          "grad_clip: {}}}\n"
          "scheduler: {{type: cosine, warmup_steps: {}, min_lr: {}}}\n"
          "precision: {{plan: {}}}\n"
          "logging: {{interval: 1}}\n"
          "output_dir: out\n",
          (golden / model).string(), (golden / "run" / (model + ".bin")).string(),
          number(expected, "seq_length"), number(expected, "steps"),
          number(expected, "micro_batch_size"), number(expected, "gradient_accumulation_steps"),
          number(expected, "lr"), number(expected, "betas"), number(expected, "eps"),
          number(expected, "weight_decay"), number(expected, "grad_clip"),
          number(expected, "warmup_steps"), number(expected, "min_lr"), plan));
  expect_code(0, where, {"--config", "run.yaml", "--threads", "1"});
}

Json expectation(const std::string& model) {
  return Json::parse(read_file(fs::path(FP8TRAIN_GOLDEN_DIR) / "run" / (model + ".json")));
}

TEST_CASE("twenty steps from a transformers folder have PyTorch's losses") {
  const std::string model = GENERATE("tiny-llama", "tiny-gpt2");
  INFO(model);
  const Json expected = expectation(model);
  const TempDir where;
  run_from_folder(where.path(), model, expected, "fp32");
  const std::vector<Json> lines = step_lines(where / "out");
  REQUIRE(lines.size() == expected.at("losses").size());
  double worst = 0;
  for (size_t step = 0; step < lines.size(); ++step) {
    INFO("step " << step + 1);
    const double loss = expected.at("losses")[step];
    const double norm = expected.at("grad_norms")[step];
    worst = std::max(worst, std::abs(lines[step].at("loss").get<double>() / loss - 1));
    CHECK(lines[step].at("loss").get<double>() == Approx(loss).epsilon(1e-5).scale(0));
    CHECK(lines[step].at("grad_norm").get<double>() == Approx(norm).epsilon(1e-4).scale(0));
  }
  WARN(model << ": largest relative difference of a loss from PyTorch's " << worst);
}

TEST_CASE("rows of low precision stay near PyTorch's fp32 losses") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current");
  INFO(plan);
  const Json expected = expectation("tiny-llama");
  const TempDir where;
  run_from_folder(where.path(), "tiny-llama", expected, plan);
  const std::vector<Json> lines = step_lines(where / "out");
  REQUIRE(lines.size() == expected.at("losses").size());
  double largest = 0;
  for (size_t step = 0; step < lines.size(); ++step) {
    const double loss = expected.at("losses")[step];
    const double difference = std::abs(lines[step].at("loss").get<double>() / loss - 1);
    CHECK(difference < 0.03);
    largest = std::max(largest, difference);
  }
  CHECK(largest > 1e-5);  // it did not run in fp32
}

}  // namespace
}  // namespace fp8train::test
