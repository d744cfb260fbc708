// Files of several programs together, FP8 over half precision, comments in JSON, and files that are
// not read.

#include <catch2/catch.hpp>
#include <filesystem>

#include "dialects/foreign_support.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::error_of_foreign;
using test::Folder;
using test::kBase;
using test::load_foreign;
using test::says;

/// Loads files in their order, the last one our own; gives the plan's name or the error.
std::string plan_of(const std::vector<std::string>& files, std::vector<std::string> sets = {}) {
  LoadRequest request;
  request.path = files.front();
  request.further_paths.assign(files.begin() + 1, files.end());
  request.sets = std::move(sets);
  try {
    return resolve_plan(load_settings(request).precision).name;
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST_CASE("FP8 of any file wins over the half precision of DeepSpeed's, in any order") {
  const Folder folder;
  const std::string run = folder.write("run.yaml", kBase);
  const std::string fp8 = folder.write(
      "fp8.yaml", "distributed_type: DEEPSPEED\nmixed_precision: fp8\nfp8_config: {backend: TE}\n");
  for (const std::string type : {"bf16", "fp16"}) {
    CAPTURE(type);
    const std::string json = folder.write(
        "ds.json", R"({"zero_optimization": {"stage": 3}, ")" + type + R"(": {"enabled": true}})");
    const std::string both = folder.write(
        "both.yaml",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
        "mixed_precision: fp8\nfp8_config: {backend: TE}\n");
    CHECK(plan_of({both, run}) == "te-delayed");
    CHECK(plan_of({run, both}) == "te-delayed");
    CHECK(plan_of({json, both, run}) == "te-delayed");
    CHECK(plan_of({both, run}, {"mixed_precision=fp8"}) == "te-delayed");
    CHECK(plan_of({both, run}, {"mixed_precision=bf16"}) == "bf16");
    CHECK(plan_of({fp8, json, run}) == "te-delayed");
    CHECK(plan_of({json, fp8, run}) == "te-delayed");
    CHECK(plan_of({json, run}, {"mixed_precision=fp8", "fp8.backend=te"}) == "te-delayed");
    CHECK(plan_of({json, run}, {"fp8=hybrid"}) == "te-delayed");
    const std::string planned =
        folder.write("planned.yaml", kBase + "precision: {plan: te-blockwise}\n");
    CHECK(plan_of({planned, json}) == "te-blockwise");
    CHECK(plan_of({json, run}) == type);
    CHECK(plan_of({json, run}, {"precision.plan=te-current"}) == "te-current");
  }
  const std::string other = folder.write(
      "other.yaml",
      "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
      "mixed_precision: bf16\n");
  CHECK_THAT(plan_of({other, run}),
             Contains("fp16.enabled: says fp16, but mixed_precision at") && Contains("says bf16"));
}

TEST_CASE("MS-AMP's section is FP8 over the half precision of the same file") {
  for (const char* level : {"o1", "o2", "o3"}) {
    const Settings s = load_foreign(kBase +
                                    "zero_optimization: {stage: 2}\nfp16: {enabled: true, "
                                    "loss_scale: 0}\nmsamp: {enabled: true, opt_level: \"" +
                                    std::string("O") + level[1] + "\"}\n");
    CHECK(resolve_plan(s.precision).name == std::string("msamp-") + level);
    CHECK(s.parallelism.zero_stage == 2);
    CHECK(says(s, "fp16.enabled: fp16 is the type under FP8, which msamp.enabled asks for"));
  }
  CHECK_THAT(error_of_foreign(kBase + "steps_per_print: 5\nfp16: {enabled: true}\n"
                                      "bf16: {enabled: true}\nmsamp: {enabled: true}\n"),
             Contains("bf16.enabled: says bf16, but fp16.enabled at run.yaml:5:8 says fp16"));
}

TEST_CASE("comments in JSON are read as DeepSpeed reads them") {
  const Settings s = load_foreign(R"(// the whole file
/* of two
   lines */
{
	// two per GPU, "quoted", don't
  "train_micro_batch_size_per_gpu": 2, // {
  "bf16": {"enabled": true /* , "loss_scale": 5 */}, # the rest
  "model": {"preset": "toy"}, "training": {"max_steps": /* few */ 3},
  "data": {"train": "a//b /* c */ # d.txt", "val": '//e // f'},
  output_dir: //g
})");
  CHECK(s.step.micro_batch_size == 2);
  CHECK(s.precision.mixed_precision == MixedPrecision::bf16);
  CHECK(s.training.max_steps == 3);
  CHECK(s.data.train.front().path == "a//b /* c */ # d.txt");
  CHECK(s.data.val.front().path == "//e // f");
  CHECK(s.output_dir == "//g");
  // Marks stay where they are.
  CHECK_THAT(error_of_foreign("{ // one\n/* two */ \"train_batch_sizes\": 2, \"bf16\": {}}"),
             Contains("run.yaml:2:11: train_batch_sizes: unknown key"));
  CHECK_THAT(error_of_foreign("{\"a\": 1 /* no end\n}"), Contains("run.yaml"));
}

TEST_CASE("files of other trainers are answered in one sentence") {
  const auto error = [](const std::string& text) { return error_of_foreign(text); };
  CHECK(error("base_model: org/model\nmodel_type: LlamaForCausalLM\nsequence_len: 2048\n"
              "micro_batch_size: 1\nnum_epochs: 1\nlearning_rate: 2e-5\nfp8: true\n") ==
        "run.yaml: this is a file of axolotl, which is not read here; write its settings as "
        "data.seq_length=2048 training.micro_batch_size=1 training.max_epochs=1 optimizer.lr=2e-5, "
        "name the model with model.from and the data with data.train, and choose the precision "
        "with mixed_precision: fp8 or precision.plan");
  const std::string factory = error(
      "model_name_or_path: org/model\nstage: sft\ndo_train: true\nfp8: true\nfp8_backend: te\n"
      "learning_rate: 5.0e-05\nwarmup_ratio: 0.03\nnum_train_epochs: 1\n");
  CHECK_THAT(factory, Contains("a file of LLaMA-Factory") && Contains("optimizer.lr=5.0e-05") &&
                          Contains("warmup_ratio: scheduler.warmup_steps: the ratio times"));
  CHECK_THAT(factory,
             !Contains("\n") && !Contains("is not here") && !Contains("mixed_precision=true"));
  CHECK_THAT(
      error("per_device_train_batch_size: 4\nnum_train_epochs: 3\noutput_dir: out\n"),
      Contains("a file of transformers (TrainingArguments)") &&
          Contains("training.micro_batch_size=4 training.max_epochs=3 output_dir=out, name"));
  // A number of steps wins over epochs, and -1 is none.
  CHECK_THAT(error("max_steps: -1\nnum_train_epochs: 0.5\noutput_dir: out\nsave_steps: 5\n"),
             Contains(" as training.max_epochs=0.5 output_dir=out checkpoint.interval=5, name"));
  CHECK_THAT(error("max_steps: 70\nnum_train_epochs: 3\noutput_dir: out\nsave_steps: 5\n"),
             Contains(" as training.max_steps=70 output_dir=out checkpoint.interval=5, name"));
  CHECK_THAT(
      error("checkpoint_dir: checkpoints/org/model\nout_dir: out\nprecision: bf16-true\n"
            "train: {global_batch_size: 16, micro_batch_size: 2, epochs: 1}\n"
            "optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 2e-4}}\n"),
      Contains("a file of litgpt") &&
          Contains("output_dir=out training.global_batch_size=16 training.micro_batch_size=2 "
                   "training.max_epochs=1 optimizer.lr=2e-4, name"));
  // Wishes are answered once each, unless they are switched off; so are values that mean another
  // thing.
  CHECK_THAT(error("base_model: org/model\nadapter: lora\nlora_r: 8\nload_in_4bit: false\n"
                   "weight_decay: 0.1\nlearning_rate: 1e-4\nwandb_project: x\n"),
             Contains("as model.lora.rank=8 optimizer.weight_decay=0.1 optimizer.lr=1e-4, name") &&
                 Contains("; adapter: adapters are a section of the model here") &&
                 !Contains("load_in") && Contains("; wandb_project: "));
  CHECK_THAT(error("base_model: org/model\nadapter: qlora\nlearning_rate: 1e-4\nlora_dropout: 0.1\n"
                   "num_epochs: 1\n"),
             Contains("as training.max_epochs=1, name") && !Contains("1e-4") &&
                 Contains("; lora_dropout: adapters are trained without dropout"));
  // Every other key is named too: a value that is not here, a file, a key without a counterpart.
  CHECK_THAT(
      error("model_name_or_path: org/model\nper_device_train_batch_size: 1\noptim: adafactor\n"
            "lr_scheduler: constant_with_warmup\ndeepspeed: ds.json\ntemplate: llama3\n"
            "weight_decay: 0\nadam_beta1: 0.9\ngradient_checkpointing: true\ntf32: true\n"
            "group_by_length: false\nspecial_tokens: {pad_token: x}\n"),
      Contains(" as training.micro_batch_size=1 scheduler.type=constant optimizer.weight_decay=0 "
               "model.recompute=block, name") &&
          Contains("; optim: adafactor: optimizer.name takes one of adamw, sgd, muon; deepspeed: "
                   "the file itself, after this one: fp8train run.yaml FILE; template: "
                   "data.chat_template: auto, which") &&
          Contains("; adam_beta1: 0.9: optimizer.betas takes a list of 2 numbers in [0, 1); "
                   "without a counterpart here: tf32, special_tokens"));
  CHECK_THAT(error("base_model: a\nnum_epochs: 1\noptimizer: adamw_torch_fused\n"
                   "lr_scheduler: polynomial\n"),
             Contains("training.max_epochs=1 optimizer.name=adamw, name") &&
                 Contains("lr_scheduler: polynomial: scheduler.type takes one of cosine, "));
  // Of two such keys in a file with a section of this program, each is an unknown key.
  for (const char* section :
       {"data: {train: a.txt}", "optimizer: {lr: 1e-3}", "scheduler: {type: cosine}",
        "parallelism: {zero_stage: 1}", "checkpoint: {interval: 5}", "logging: {interval: 1}"}) {
    CAPTURE(section);
    CHECK_THAT(error(std::string(section) + "\nmax_grad_norm: 1\nwarmup_ratio: 0.1\n"),
               Contains("run.yaml:2:1: max_grad_norm: unknown key") &&
                   Contains("run.yaml:3:1: warmup_ratio: unknown key"));
  }
  // So is one alone.
  CHECK_THAT(error(kBase + "num_epochs: 1\nsequence_len: 8\n"),
             Contains("run.yaml:4:1: num_epochs: unknown key; `num_epochs` belongs to `training` "
                      "as max_epochs"));
  CHECK_THAT(error("warmup_ratio: 0.1\n"),
             Contains("warmup_ratio: unknown key; use scheduler.warmup_steps: the ratio times"));
}

}  // namespace
}  // namespace fp8train
