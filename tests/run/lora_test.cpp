// Runs with adapters (model.lora): killed and resumed, exported merged and for peft, and refused on
// another base.

#include "resumed_runs.h"

namespace fp8train::test {
namespace {

/// A trained base and the words of a run that adapts it.
struct Adapted {
  Workshop shop;
  Words command(const std::string& name, const Words& more = {}) const {
    Words words = {"model=", "model.from=base/checkpoints/step-000005", "model.lora.rank=4",
                   "model.lora.alpha=8", "model.lora.targets=[q_proj, v_proj, gate_proj]"};
    words.insert(words.end(), more.begin(), more.end());
    return Workshop::command("te-delayed", name, words);
  }

  Adapted() {
    expect_code(0, shop.folder(), Workshop::command("bf16", "base", {"training.max_steps=5"}));
  }
};

TEST_CASE("killed and resumed with adapters: the bits of the undisturbed run, on the same base") {
  const Adapted of;
  const fs::path& folder = of.shop.folder();
  const Outcome whole = expect_code(0, folder, of.command("whole"));
  CHECK_THAT(whole.out, Catch::Contains(" layers, rank 4, times 2; the others are frozen"));
  kill_after(of.shop, of.command("broken"), "broken", 13, 0);
  const Outcome last = expect_code(0, folder, of.command("broken"));
  CHECK_THAT(last.out, Catch::Contains("resumed from broken/checkpoints/step-0000"));
  check_equal_runs(of.shop, "whole", "broken");
  const std::vector<double> losses = logged_losses(of.shop.run("whole"));
  CHECK(losses.back() < losses.front());
  const fs::path checkpoint = of.shop.final_checkpoint("whole");
  CHECK(fs::exists(checkpoint / "adapter_model.safetensors"));
  CHECK_FALSE(fs::exists(checkpoint / "model.safetensors"));
  const Outcome rank = run_program(folder, of.command("whole", {"model.lora.rank=8"}));
  CHECK(rank.code == 4);
  CHECK_THAT(rank.err, Catch::Contains("model.lora.rank: was 4, is 8"));
  const fs::path base = folder / "base/checkpoints/step-000005/model.safetensors";
  std::string bytes = read_file(base);
  bytes.back() ^= 1;
  write_file(base, bytes);
  const Outcome other = run_program(folder, of.command("whole", {"training.max_steps=41"}));
  CHECK(other.code == 4);
  CHECK_THAT(other.err, Catch::Contains("were trained on another base model"));
}

TEST_CASE("adapters are exported merged and for peft, and trained on") {
  const Adapted of;
  const fs::path& folder = of.shop.folder();
  expect_code(0, folder, of.command("run", {"model.lora.base=fp32"}));
  const auto words = [](const Words& more) {
    Words all = {"export", "run"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Outcome none = run_program(folder, words({"--out", "x"}));
  CHECK(none.code == 2);
  CHECK_THAT(none.err, Catch::Contains("--merge") && Catch::Contains("--to peft"));
  CHECK(run_program(folder, {"export", "base", "--merge", "--out", "x"}).code == 2);
  expect_code(0, folder, words({"--merge", "--out", "merged"}));
  expect_code(0, folder, words({"--to", "peft", "--out", "adapter"}));
  CHECK(same_bytes(folder / "adapter/adapter_model.safetensors",
                   of.shop.final_checkpoint("run") / "adapter_model.safetensors"));
  const auto text = [&](const std::string& model) {
    return expect_code(0, folder,
                       {"generate", "--checkpoint", model, "--prompt", "the", "--device", "cpu",
                        "--max-new-tokens", "12"})
        .out;
  };
  CHECK(text("merged") == text("run"));
  CHECK(text("merged") != text("base"));
  const Outcome more =
      expect_code(0, folder,
                  Workshop::command("te-delayed", "more",
                                    {"model=", "model.from=base/checkpoints/step-000005",
                                     "model.lora.from=adapter", "model.lora.base=fp32"}));
  const std::vector<double> before = logged_losses(of.shop.run("run"));
  CHECK(logged_losses(of.shop.run("more")).front() < before.front());
  const Outcome contradiction =
      run_program(folder, of.command("other", {"model.lora.from=adapter", "model.lora.rank=2"}));
  CHECK(contradiction.code == 2);
  CHECK_THAT(contradiction.err, Catch::Contains("has adapters of rank 4 and alpha 8"));
  const Outcome dropout = run_program(folder, of.command("other", {"model.lora.dropout=0.1"}));
  CHECK(dropout.code == 2);
  CHECK_THAT(dropout.err, Catch::Contains("without dropout"));
}

TEST_CASE("a folder of codes is a frozen base as it is") {
  const std::string dtype = GENERATE("fp8-block", "fp8-tensor");
  CAPTURE(dtype);
  const Workshop shop;
  const fs::path& folder = shop.folder();
  const Words shape = {"model.hidden_size=128", "model.num_key_value_heads=4", "model.head_dim=32",
                       "model.intermediate_size=256", "training.max_steps=5"};
  expect_code(0, folder, Workshop::command("bf16", "base", shape));
  expect_code(0, folder, {"export", "base", "--dtype", dtype, "--out", "codes"});
  const auto run = [&](const std::string& plan, const std::string& name, const std::string& base) {
    return expect_code(0, folder,
                       Workshop::command(plan, name,
                                         {"model=", "model.from=codes", "model.lora.rank=4",
                                          "model.lora.targets=all-linear",
                                          "model.lora.base=" + base, "training.max_steps=6"}));
  };
  const std::string format = dtype == "fp8-block" ? "e4m3 128x128" : "e4m3 row";
  CHECK_THAT(run("bf16", "codes-bf16", "as_file").out,
             Catch::Contains("linear layers as " + format));
  run("bf16", "values", "bf16");
  CHECK(logged_losses(shop.run("codes-bf16")) == logged_losses(shop.run("values")));
  for (const std::string plan : {"deepseek-v3", "te-delayed", "torchao-rowwise", "int8-qat"}) {
    CAPTURE(plan);
    run(plan, plan, "as_file");
    run(plan, plan + "-values", "fp32");
    const std::vector<double> of_codes = logged_losses(shop.run(plan));
    const std::vector<double> of_values = logged_losses(shop.run(plan + "-values"));
    REQUIRE(of_codes.size() == 6);
    for (size_t i = 0; i < of_codes.size(); ++i) {
      CHECK(of_codes[i] == Approx(of_values[i]).epsilon(2e-3));
    }
  }
  run("bf16", "cast", "int8 row");
  CHECK(logged_losses(shop.run("cast")).back() ==
        Approx(logged_losses(shop.run("values")).back()).epsilon(5e-3));
  expect_code(0, folder, {"export", "codes-bf16", "--merge", "--out", "merged"});
}

}  // namespace
}  // namespace fp8train::test
