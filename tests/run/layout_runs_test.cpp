// Runs whose ranks have parts of the model, in several layouts.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "program.h"
#include "rank_runs.h"

namespace fp8train::test {

TEST_CASE("groups of ranks that add gradients in shards continue to the same bits") {
  const TextFolder folder;
  const Words keys = {"training.micro_batch_size=1", "parallelism.zero_stage=3",
                      "parallelism.sync_each_batch=true", "parallelism.shard_ranks=2"};
  const Outcome whole = run(folder, 4, command("te-delayed", "whole", keys));
  CHECK_THAT(whole.out, Catch::Contains("ZeRO 3 within groups of 2, gradients exchanged in each"));
  fs::copy(folder / "whole", folder / "again", fs::copy_options::recursive);
  fs::remove_all(folder / "again" / "checkpoints" / "step-000016");
  fs::remove_all(folder / "again" / "checkpoints" / "step-000024");
  run(folder, 4, command("te-delayed", "again", keys));
  const fs::path final = fs::path("checkpoints") / "step-000024";
  for (const char* file : {"model.safetensors", "optimizer-00001-of-00002.safetensors",
                           "optimizer-00002-of-00002.safetensors", "scaling.safetensors"}) {
    CAPTURE(file);
    CHECK(same_bytes(folder / "again" / final / file, folder / "whole" / final / file));
  }
}

/// That after the last step.
double validation_loss(const fs::path& run) {
  return nlohmann::json::parse(read_file(run / "summary.json")).at("val_loss");
}

TEST_CASE("a run continues in every layout to the bits of one rank") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-nvfp4", "fp8-lm");
  CAPTURE(plan);
  const TextFolder folder;
  const auto words = [&](const std::string& name, const Words& layout) {
    Words all = {"parallelism.tensor_parts=2", "checkpoint.keep_last=5",
                 plan == "bf16" ? "optimizer.name=muon" : "optimizer.name=adamw"};
    all.insert(all.end(), layout.begin(), layout.end());
    return command(plan, name, all);
  };
  run(folder, 1, words("one", {}));
  struct Layout {
    int ranks;
    Words keys;
  };
  // Without `zero_stage` ranks that have one batch between them, so that no wire rounds.
  const std::vector<Layout> layouts = {
      {2, {"parallelism.tensor=2"}},
      {2, {"parallelism.pipeline=2"}},
      {4, {"parallelism.tensor=2", "parallelism.pipeline=2"}},
  };
  const fs::path final = fs::path("checkpoints") / "step-000024";
  std::string before = "one";
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string name = std::to_string(i);
    CAPTURE(name, before);
    // From the middle of the layout before, so that each reads what another has written.
    fs::copy(folder / before, folder / name, fs::copy_options::recursive);
    fs::remove_all(folder / name / "checkpoints" / "step-000016");
    fs::remove_all(folder / name / final);
    run(folder, layouts[i].ranks, words(name, layouts[i].keys));
    for (const fs::path& file :
         {final / "model.safetensors", fs::path("samples/step-000016.txt")}) {
      CAPTURE(file);
      CHECK(same_bytes(folder / name / file, folder / "one" / file));
    }
    CHECK(validation_loss(folder / name) == validation_loss(folder / "one"));
    before = name;
  }
  // And back: the moments and scales of four ranks.
  fs::copy(folder / before, folder / "back", fs::copy_options::recursive);
  fs::remove_all(folder / "back" / final);
  run(folder, 1, words("back", {}));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    CAPTURE(file);
    CHECK(same_bytes(folder / "back" / final / file, folder / "one" / final / file));
  }
}

TEST_CASE("a run of ranks that share sequences continues as one of data ranks, and back") {
  const std::string kind = GENERATE("heads", "gather");
  CAPTURE(kind);
  const TextFolder folder;
  const Words data = {"checkpoint.keep_last=5", "sample.interval=0"};
  Words context = data;
  context.insert(context.end(), {"parallelism.context=2", "parallelism.context_kind=" + kind});
  run(folder, 2, command("te-delayed", "context", context));
  run(folder, 2, command("te-delayed", "data", data));
  const double loss = validation_loss(folder / "data");
  CHECK(validation_loss(folder / "context") == Approx(loss).epsilon(0.01));
  fs::copy(folder / "context", folder / "then", fs::copy_options::recursive);
  fs::remove_all(folder / "then" / "checkpoints" / "step-000024");
  run(folder, 2, command("te-delayed", "then", data));
  CHECK(validation_loss(folder / "then") == Approx(loss).epsilon(0.01));
}

TEST_CASE("ranks with different experts continue as ranks with all, and back") {
  const std::string plan = GENERATE("deepseek-v3", "fp8-lm");
  CAPTURE(plan);
  const TextFolder folder;
  const auto words = [&](const std::string& name, int64_t experts, int64_t stage) {
    return command(plan, name,
                   {"model.preset=toy-moe", "checkpoint.keep_last=5", "sample.interval=0",
                    fmt::format("parallelism.expert={}", experts),
                    fmt::format("parallelism.zero_stage={}", stage)});
  };
  const fs::path saved = "checkpoints";
  const fs::path weights = saved / "step-000024" / "model.safetensors";
  const auto run_on_from = [&](const std::string& before, const std::string& name,
                               const Words& without, const Words& as) {
    fs::copy(folder / before, folder / name, fs::copy_options::recursive);
    for (const std::string& step : without) {
      fs::remove_all(folder / name / saved / step);
    }
    run(folder, 4, as);
  };
  const Words last = {"step-000024"};
  const Words last_two = {"step-000016", "step-000024"};
  run(folder, 4, words("parts", 2, 0));
  const double loss = validation_loss(folder / "parts");
  // Stage 0 rounds the gradients of fp8-lm once more.
  run_on_from("parts", "same", last, words("same", 2, plan == "fp8-lm" ? 0 : 3));
  CHECK(same_bytes(folder / "same" / weights, folder / "parts" / weights));
  run_on_from("parts", "all", last_two, words("all", 1, 1));
  CHECK(validation_loss(folder / "all") == Approx(loss).epsilon(0.02));
  run_on_from("all", "again", last, words("again", 4, 2));
  CHECK(validation_loss(folder / "again") == Approx(loss).epsilon(0.02));
}

TEST_CASE("ranks that have parts of a model begin with the weights of a folder") {
  const TextFolder folder;
  run(folder, 1, command("bf16", "first", {"training.max_steps=3", "sample.interval=0"}));
  const std::string plan = GENERATE("bf16", "te-delayed");
  CAPTURE(plan);
  const auto continued = [&](const std::string& name, int ranks, Words keys) {
    keys.insert(keys.end(), {"model.from=first/checkpoints/step-000003", "training.max_steps=4",
                             "model.resize_vocabulary=290", "parallelism.tensor_parts=2"});
    Words words = command(plan, name, keys);
    std::erase(words, "model.preset=toy");
    run(folder, ranks, words);
    return folder / name / "checkpoints" / "step-000004" / "model.safetensors";
  };
  const fs::path one = continued("one", 1, {});
  CHECK(same_bytes(continued("tensor", 2, {"parallelism.tensor=2"}), one));
  CHECK(same_bytes(continued("pipeline", 2, {"parallelism.pipeline=2"}), one));
}

TEST_CASE("ranks that share layers and the optimizer write one checkpoint") {
  const auto [plan, stage] = GENERATE(std::pair("te-delayed", "0"), std::pair("te-delayed", "1"),
                                      std::pair("te-delayed", "3"), std::pair("fp8-lm", "0"),
                                      std::pair("fp8-lm", "3"), std::pair("int8-qat", "2"));
  CAPTURE(plan, stage);
  const TextFolder folder;
  const Words keys = {"sample.interval=0", "parallelism.tensor_parts=2",
                      std::string("parallelism.zero_stage=") + stage};
  run(folder, 2, command(plan, "data", keys));
  Words shared = keys;
  shared.emplace_back("parallelism.tensor=2");
  run(folder, 4, command(plan, "shared", shared));
  const fs::path final = fs::path("checkpoints") / "step-000024" / "model.safetensors";
  CHECK(same_bytes(folder / "shared" / final, folder / "data" / final));
  expect_code(0, folder.path(), {"export", "shared", "--out", "hf"});
}

TEST_CASE("ranks that share layers read weights with one scale as one rank does") {
  const TextFolder folder;
  const auto words = [](const char* name, const Words& more) {
    Words all = command("fp8-lm", name, {"sample.interval=0", "parallelism.tensor_parts=2"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  run(folder, 1, words("first", {}));
  expect_code(0, folder.path(), {"export", "first", "--out", "model"});
  const auto from_folder = [&](const char* name, const Words& layout) {
    Words all = words(name, layout);
    all.front() = "model.from=model";  // in place of the preset
    return all;
  };
  run(folder, 1, from_folder("one", {}));
  run(folder, 2, from_folder("two", {"parallelism.tensor=2"}));
  const fs::path final = fs::path("checkpoints") / "step-000024" / "model.safetensors";
  CHECK(same_bytes(folder / "two" / final, folder / "one" / final));
}

TEST_CASE("a run continues where another layout pads the vocabulary to another length") {
  const TextFolder folder;  // 258 tokens: 272 rows, 288 of two ranks
  const auto words = [](const Words& layout) {
    Words all = {"sample.interval=0", "checkpoint.keep_last=5"};
    all.insert(all.end(), layout.begin(), layout.end());
    return command("te-delayed", "run", all);
  };
  run(folder, 1, words({}));
  const fs::path checkpoints = folder / "run" / "checkpoints";
  fs::remove_all(checkpoints / "step-000016");
  fs::remove_all(checkpoints / "step-000024");
  CHECK_THAT(run(folder, 2, words({"parallelism.tensor=2"})).out,
             Catch::Contains("step-000008 at step 8"));
  fs::remove_all(checkpoints / "step-000024");
  CHECK_THAT(run(folder, 1, words({})).out, Catch::Contains("step-000016 at step 16"));
}

TEST_CASE("stages continue with their factors of automatic scales") {
  const TextFolder folder;
  const Words words = command("fp8-lm", "run", {"sample.interval=0", "parallelism.pipeline=2"});
  run(folder, 2, words);
  const fs::path final = folder / "run" / "checkpoints" / "step-000024";
  const std::string whole = read_file(final / "model.safetensors");
  fs::remove_all(final);
  CHECK_THAT(run(folder, 2, words).out, Catch::Contains("step-000016 at step 16"));
  CHECK(read_file(final / "model.safetensors") == whole);
}

}  // namespace fp8train::test
