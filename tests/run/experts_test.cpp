// Runs of models with experts: killed and resumed, ended where too much is dropped, and adapted.

#include "io/safetensors/tensor_source.h"
#include "resumed_runs.h"

namespace fp8train::test {
namespace {

Words experts(const std::string& plan, const std::string& name, const Words& more = {}) {
  Words words = {"model.preset=toy-moe"};
  words.insert(words.end(), more.begin(), more.end());
  return Workshop::command(plan, name, words);
}

TEST_CASE("killed and resumed with biases of routers: the bits of the undisturbed run") {
  const Workshop shop;
  const Words biases = {"model.scoring_func=sigmoid", "model.e_score_correction_bias=true",
                        "moe.bias_rate=0.01", "logging.tensor_interval=10"};
  const Outcome whole = expect_code(0, shop.folder(), experts("te-delayed", "whole", biases));
  CHECK_THAT(whole.out, Catch::Contains(" | dropped ") &&
                            Catch::Contains(" % of the choices of experts dropped; everything"));
  kill_after(shop, experts("te-delayed", "broken", biases), "broken", 13, 0);
  expect_code(0, shop.folder(), experts("te-delayed", "broken", biases));
  check_equal_runs(shop, "whole", "broken");
  const std::vector<float> bias =
      TensorSource(shop.final_checkpoint("whole"))
          .read_f32("model.layers.1.mlp.gate.e_score_correction_bias", {8});
  CHECK(std::ranges::any_of(bias, [](float value) { return value > 0.0F; }));
  size_t lines = 0;
  for (const std::string& line : lines_of(timeless_metrics(shop.run("whole")))) {
    const nlohmann::json metrics = nlohmann::json::parse(line);
    CHECK(metrics.contains("val_loss") == metrics.contains("val_experts_dropped_percent"));
    if (metrics.contains("expert_loads")) {
      ++lines;
      const auto loads = metrics.at("expert_loads").at("1").get<std::vector<int>>();
      REQUIRE(loads.size() == 8);
      CHECK(metrics.at("expert_loads").size() == 2);
      CHECK(std::ranges::max(loads) <= 100 * metrics.at("expert_load_most").get<double>() + 1);
    }
  }
  CHECK(lines == 4);
}

TEST_CASE("a step that drops more than moe.max_dropped ends the run with 5") {
  const Workshop shop;
  const Words tight = {"moe.capacity_factor=0.5", "moe.max_dropped=0.1"};
  const Outcome ended = expect_code(5, shop.folder(), experts("fp32", "run", tight));
  CHECK_THAT(ended.err, Catch::Contains("in step 1 experts had no memory for") &&
                            Catch::Contains("moe.max_dropped is 10.00 %"));
}

TEST_CASE("adapters of experts are resumed, merged, and stay on the stored base") {
  const Workshop shop;
  const fs::path& folder = shop.folder();
  expect_code(0, folder, experts("bf16", "base", {"training.max_steps=5"}));
  const auto adapted = [](const std::string& name, const Words& more = {}) {
    Words words = {"model=", "model.from=base/checkpoints/step-000005", "model.lora.rank=4",
                   "model.lora.targets=[q_proj, up_proj, experts.*.down]"};
    words.insert(words.end(), more.begin(), more.end());
    return Workshop::command("te-delayed", name, words);
  };
  expect_code(0, folder, adapted("whole"));
  kill_after(shop, adapted("broken"), "broken", 13, 0);
  expect_code(0, folder, adapted("broken"));
  check_equal_runs(shop, "whole", "broken");
  const std::vector<double> losses = logged_losses(shop.run("whole"));
  CHECK(losses.back() < losses.front());
  expect_code(0, folder, {"export", "whole", "--merge", "--out", "merged"});
  const std::string expert = "model.layers.0.mlp.experts.3.down_proj.weight";
  const auto weight = [&](const fs::path& model) {
    return TensorSource(model).read_f32(expert, {64, 96});
  };
  CHECK(weight(folder / "merged") == weight(shop.final_checkpoint("whole")));
  CHECK(weight(folder / "merged") != weight(folder / "base/checkpoints/step-000005"));
  const Outcome other =
      run_program(folder, adapted("whole", {"model.lora.base=int8 row", "training.max_steps=41"}));
  CHECK(other.code == 4);
  CHECK_THAT(other.err, Catch::Contains("model.lora.base: was fp32, is int8 row"));
}

}  // namespace
}  // namespace fp8train::test
