// Keys that go together or contradict each other, and defaults that follow from other keys.

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <string>

#include "config/load_support.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using test::error_of;
using test::error_with;
using test::kBase;

TEST_CASE("a model's folder gives the sequence length, and a FIFO in it is waited for by nobody") {
  const test::TempDir folder;
  test::write_file(folder / "config.json", "{\"n_positions\": 77}");
  const std::string text =
      "model: {from: " + folder.path().string() + "}\ndata: {train: a}\ntraining: {max_steps: 5}\n";
  CHECK(test::load_text(text).step.seq_length == 77);
  std::filesystem::remove(folder / "config.json");
  const int64_t usual = test::load_text(text).step.seq_length;
  REQUIRE(mkfifo((folder / "config.json").c_str(), 0600) == 0);
  CHECK(test::load_text(text).step.seq_length == usual);
}

TEST_CASE("the model is given in exactly one way") {
  const std::string rest = "data: {train: a}\ntraining: {max_steps: 5}\n";
  CHECK(error_of(rest) ==
        "run.yaml: model.preset: missing; give model.preset, model.from or the model's fields");
  CHECK(error_of("model: {recompute: block}\n" + rest) ==
        "run.yaml:1:1: model.preset: missing; give model.preset, model.from or the model's fields");
  CHECK(error_of("model: {preset: toy, from: dir}\n" + rest) ==
        "run.yaml:1:22: model.from: conflicts with model.preset; remove one of them");
  CHECK(error_of("model: {hidden_size: 8, from: dir}\n" + rest) ==
        "run.yaml:1:9: model.hidden_size: conflicts with model.from, whose config.json has the "
        "shape; remove one of them");
  CHECK(error_of("model: {from: dir, recompute: block}\n" + rest) == "loaded");
  CHECK(error_of("model: {from: dir, resize_vocabulary: 300}\n" + rest) == "loaded");
  CHECK_THAT(error_of("model: {preset: toy, resize_vocabulary: 300}\n" + rest),
             Catch::StartsWith("run.yaml:1:22: model.resize_vocabulary: adds tokens to the model "
                               "of model.from"));
  CHECK(error_of("model: {hidden_size: 64, num_hidden_layers: 2, max_position_embeddings: "
                 "2048}\n" +
                 rest) ==
        "run.yaml:1:1: model.num_attention_heads: missing; a model without a preset needs it");
  CHECK(error_of("model: {preset: toy, attn_pdrop: 0.1}\n" + rest) ==
        "run.yaml:1:22: model.attn_pdrop: fp8train trains without dropout: set it to 0 or remove "
        "it");
  CHECK(error_of("model: {preset: toy, rope_scaling: {factor: 2}}\n" + rest) ==
        "run.yaml:1:45: model.rope_scaling.factor: has a meaning only with rope_type: linear, "
        "dynamic, "
        "llama3 or yarn");
}

TEST_CASE("settings that contradict each other") {
  const std::string head = "model: {preset: toy}\ndata: {train: a}\n";
  CHECK(error_of(head) ==
        "run.yaml: training.max_steps: missing; give one of max_steps, max_tokens and max_epochs");
  CHECK(
      error_of(head + "training: {max_steps: 5, max_tokens: 1M}\n") ==
      "run.yaml:3:26: training.max_tokens: conflicts with training.max_steps; remove one of them");
  CHECK(
      error_of(head + "training: {max_epochs: 2, max_steps: 5}\n") ==
      "run.yaml:3:12: training.max_epochs: conflicts with training.max_steps; remove one of them");
  CHECK(
      error_of(head + "training: {max_tokens: 1M, max_epochs: 2}\n") ==
      "run.yaml:3:28: training.max_epochs: conflicts with training.max_tokens; remove one of them");
  CHECK_THAT(error_of(head + "training: {max_epochs: 0}\n"),
             Catch::Contains("run.yaml:3:24: training.max_epochs: expected a number > 0, got"));
  CHECK(error_of(head + "training: {max_epochs: 0.5}\n") == "loaded");
  CHECK(error_of(head + "training: {max_tokens: 100}\n") ==
        "run.yaml:3:12: training.max_tokens: less than one optimizer step of 512 tokens");
  CHECK(error_of(head + "training: {max_tokens: 512}\n") == "loaded");
  CHECK(error_of(head + "training: {max_steps: 5, global_batch_size: 12}\n") ==
        "run.yaml:3:26: training.global_batch_size: 12 is not a multiple of "
        "training.micro_batch_size 8");
  CHECK(error_of(head + "training: {max_steps: 5, global_batch_size: 16, "
                        "gradient_accumulation_steps: 2}\n") ==
        "run.yaml:3:26: training.global_batch_size: conflicts with "
        "training.gradient_accumulation_steps; remove one of them");
  CHECK(error_with("scheduler: {min_lr: 1}") ==
        "run.yaml:4:13: scheduler.min_lr 1 is above optimizer.lr 0.0003");
  CHECK(error_with("optimizer: {lr: 1e-3}\nscheduler: {min_lr: 1e-3}") == "loaded");
  CHECK(error_with("scheduler: {type: wsd}") ==
        "run.yaml:4:1: scheduler.decay_steps: missing; type wsd needs the length of the final "
        "decay");
  CHECK(error_with("eval: {interval: 5}").starts_with("run.yaml:4:8: eval.interval: asks for"));
  CHECK(error_of(kBase, {"data.val_fraction=0", "eval.interval=5"}) ==
        "--set data.val_fraction=0: data.val_fraction: is 0, and there is no data.val, but "
        "eval.interval is 5; set data.val or data.val_fraction, or eval.interval: 0");
  const std::string bad_fraction = error_of(
      "model: {preset: toy}\ntraining: {max_steps: 5}\n"
      "data: {train: a, val_fraction: much}\neval: {interval: 5}\n");
  CHECK_THAT(bad_fraction, Catch::StartsWith("run.yaml:3:32: data.val_fraction: expected") &&
                               !Catch::Contains("eval.interval"));
  CHECK(error_of(kBase, {"data.seq_length=65"}) ==
        "--set data.seq_length=65: data.seq_length 65 is longer than "
        "model.max_position_embeddings 64");
  CHECK(error_of("model: {preset: toy}\ntraining: {max_steps: 1}\n"
                 "data: {train: a, val: b, val_fraction: 0.1}\n") ==
        "run.yaml:3:26: data.val_fraction: conflicts with data.val; remove one of them");
  CHECK(error_with("parallelism: {pipeline: 2, schedule_file: o, schedule: 1f1b}") ==
        "run.yaml:4:28: parallelism.schedule_file: conflicts with parallelism.schedule; remove one "
        "of them");
  CHECK(error_with("parallelism: {schedule_file: o}") ==
        "run.yaml:4:15: parallelism.schedule_file: has no meaning with parallelism.pipeline: 1; "
        "remove it");
}

TEST_CASE("the schedule of a planned run is held against the steps of all ranks") {
  const auto objections = [](const char* ranks) {
    return read_answers({{"model.preset", "toy"},
                         {"data.train", "a.txt"},
                         {"training.max_tokens", "5120"},
                         {"scheduler.warmup_steps", "5"},
                         {"job.ranks_per_node", ranks}})
        .objections;
  };
  CHECK(objections("1").empty());
  REQUIRE(objections("4").size() == 1);
  CHECK(objections("4")[0].key == "scheduler.warmup_steps");
  CHECK(objections("4")[0].text == "the warm-up of 5 steps does not end before the run's 2 steps");
}

TEST_CASE("warm-up ends before the run does, and the decay fills what is left") {
  const auto objections = [](const char* warmup, const char* decay) {
    return read_answers({{"model.preset", "toy"},
                         {"data.train", "a.txt"},
                         {"training.max_steps", "10"},
                         {"scheduler.type", "wsd"},
                         {"scheduler.warmup_steps", warmup},
                         {"scheduler.decay_steps", decay}})
        .objections;
  };
  CHECK(objections("4", "6").empty());
  REQUIRE(objections("4", "7").size() == 1);
  CHECK(objections("4", "7")[0].text ==
        "warm-up (4) and decay (7) together are longer than the run's 10 steps");
  CHECK(objections("9", "1").empty());
  REQUIRE(objections("10", "1").size() == 1);
  CHECK(objections("10", "1")[0].text ==
        "the warm-up of 10 steps does not end before the run's 10 steps");
}

TEST_CASE("keys of another optimizer or schedule than the one chosen") {
  CHECK_THAT(error_with("optimizer: {name: adamw, momentum: 0.5}"),
             Catch::Contains("optimizer.momentum") &&
                 Catch::Contains("has no meaning with optimizer.name: adamw"));
  CHECK_THAT(error_with("optimizer: {name: sgd, betas: [0.5, 0.6]}"),
             Catch::Contains("optimizer.betas"));
  CHECK_THAT(error_with("optimizer: {muon: {ns_steps: 6}}"),
             Catch::Contains("optimizer.muon.ns_steps") &&
                 Catch::Contains("has no meaning with optimizer.name: adamw"));
  CHECK_THAT(error_with("optimizer: {name: muon, momentum: 0.5}"),
             Catch::Contains("optimizer.momentum") &&
                 Catch::Contains("has no meaning with optimizer.name: muon"));
  CHECK_THAT(error_with("optimizer: {name: muon}\nprecision: {moment2: bf16}"),
             Catch::Contains("precision.moment2"));
  CHECK_THAT(error_with("optimizer: {name: muon, muon: {scale: large}}"),
             Catch::Contains("one of original, match_rms_adamw"));
  CHECK_THAT(error_with("parallelism: {shard_ranks: 2}"),
             Catch::Contains("parallelism.shard_ranks: has no meaning with"));
  CHECK_THAT(error_with("optimizer: {name: muon}\nparallelism: {zero_stage: 1, shard_ranks: node}"),
             Catch::Contains("muon divides whole parameters among all ranks"));
  CHECK_THAT(error_with("parallelism: {zero_stage: 1, sync_each_batch: true}"),
             Catch::Contains("parallelism.sync_each_batch: true saves memory with"));
  CHECK_THAT(error_with("optimizer: {name: muon}\nparallelism: {zero_stage: 2}"),
             Catch::Contains("parallelism.zero_stage: 2 cuts") && Catch::Contains("whole"));
  CHECK_THAT(error_with("scheduler: {type: constant, min_lr: 1e-5}"),
             Catch::Contains("scheduler.min_lr"));
  CHECK_THAT(error_with("scheduler: {type: constant, decay_steps: 5}"),
             Catch::Contains("scheduler.decay_steps") &&
                 Catch::Contains("has no meaning with scheduler.type: constant"));
}

TEST_CASE("precision keys that have no meaning or contradict each other") {
  CHECK_THAT(error_of("model: {preset: toy}\ndata: {train: a}\ntraining: {max_steps: 1}\n"
                      "precision: {plan: te-delayed}\n",
                      {"precision.master_weight=fp16"}),
             Catch::Contains(": precision.weight: ") &&
                 !Catch::Contains("precision.plan: precision.weight"));
  CHECK(
      error_with("fp8: {margin: 1}") ==
      "run.yaml:4:7: fp8.margin: has no meaning with mixed_precision: no; set mixed_precision: fp8 "
      "or remove the key");
  CHECK(error_with("mixed_precision: bf16\nprecision: {margin: 1}") ==
        "run.yaml:5:13: precision.margin: has no meaning with mixed_precision: bf16; set "
        "mixed_precision: fp8 or remove the key");
  CHECK(error_with("mixed_precision: fp8\nfp8: {recipe: delayed}\nprecision: {plan: te-delayed}") ==
        "run.yaml:5:7: fp8.recipe: conflicts with precision.plan, which names the plan directly; "
        "remove one of them");
  CHECK_THAT(
      error_with("mixed_precision: fp9\nfp8: {margin: 1}"),
      Catch::StartsWith("run.yaml:4:18: mixed_precision: ") && !Catch::Contains("has no meaning"));
  CHECK(error_with("mixed_precision: fp8\nfp8: {recipe: delyed}")
            .starts_with("run.yaml:5:7: fp8.recipe: no plan for backend"));
  CHECK(error_with("mixed_precision: fp8\nfp8: {recipe: current, amax_history_len: 3}")
            .starts_with("run.yaml:5:24: fp8.amax_history_len has no meaning for plan"));
  CHECK(error_with("mixed_precision: bf16\nfp8: {swiglu: smooth}")
            .starts_with("run.yaml:5:7: fp8.swiglu: has no meaning with mixed_precision: bf16"));
  CHECK(error_with("precision: {plan: bf16, swiglu: smooth}")
            .starts_with("run.yaml:4:25: precision.swiglu: "));
  CHECK(error_with("precision: {plan: bf16, swiglu: bf16_down_input}")
            .starts_with("run.yaml:4:25: precision.swiglu: "));
  CHECK_THAT(error_with("precision: {plan: int8-qat, swiglu: smooth}"), Catch::Contains("in FP8"));
  CHECK_THAT(error_with("mixed_precision: fp8\nfp8: {recipe: current, swiglu: smoothed}"),
             Catch::Contains("plain, smooth, bf16_down_input"));
  CHECK_THAT(error_with("precision: {plan: te-current, swiglu: smooth, wgrad_x: bf16}"),
             Catch::Contains("fp8.swiglu") && Catch::Contains("use bf16_down_input"));
  CHECK(error_with("precision: {plan: te-delyed}")
            .starts_with("run.yaml:4:13: precision.plan: no plan 'te-delyed'"));
  CHECK(error_with("precision: {backend: te}")
            .starts_with(
                "run.yaml:4:13: precision.backend: unknown key; `backend` belongs to `fp8`"));
}

}  // namespace
}  // namespace fp8train
