// Whole files of other programs: `accelerate config` and DeepSpeed.

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

int stage_of(const std::string& text) {
  return static_cast<int>(load_foreign(kBase + text).parallelism.zero_stage);
}

std::string fsdp(const std::string& keys) {
  return "distributed_type: FSDP\nfsdp_config: {" + keys + "}\n";
}

TEST_CASE("an FSDP strategy is a ZeRO stage") {
  CHECK(stage_of(fsdp("fsdp_sharding_strategy: FULL_SHARD")) == 3);
  CHECK(stage_of(fsdp("fsdp_sharding_strategy: SHARD_GRAD_OP")) == 2);
  CHECK(stage_of(fsdp("fsdp_sharding_strategy: NO_SHARD")) == 0);
  CHECK(stage_of(fsdp("fsdp_sharding_strategy: 1")) == 3);
  CHECK(stage_of(fsdp("sharding_strategy: 2")) == 2);
  CHECK(stage_of(fsdp("fsdp_sharding_strategy: 3")) == 0);
  CHECK(stage_of(fsdp("fsdp_version: 2, fsdp_reshard_after_forward: true")) == 3);
  CHECK(stage_of(fsdp("fsdp_version: 2, fsdp_reshard_after_forward: false")) == 2);
  CHECK(stage_of(fsdp("fsdp_reshard_after_forward: SHARD_GRAD_OP")) == 2);
  CHECK(stage_of(fsdp("fsdp_version: 2, fsdp_sharding_strategy: SHARD_GRAD_OP")) == 3);
  CHECK(stage_of(fsdp("fsdp_version: 1, fsdp_reshard_after_forward: true, "
                      "fsdp_sharding_strategy: NO_SHARD")) == 0);
  CHECK(stage_of(fsdp("fsdp_use_orig_params: true")) == 3);
  CHECK(stage_of("distributed_type: FSDP\n") == 3);
  CHECK(stage_of("distributed_type: MULTI_GPU\nfsdp_config: {fsdp_sharding_strategy: 1}\n") == 0);
  const Settings hybrid = load_foreign(kBase + fsdp("fsdp_sharding_strategy: HYBRID_SHARD"));
  CHECK(hybrid.parallelism.zero_stage == 3);
  CHECK(hybrid.parallelism.shard_ranks == kRanksOfNode);
  const Settings sized =
      load_foreign(kBase + fsdp("fsdp_version: 2, fsdp_reshard_after_forward: true") +
                   "parallelism_config: {parallelism_config_dp_replicate_size: 2, "
                   "parallelism_config_dp_shard_size: 4}\n");
  CHECK(sized.parallelism.shard_ranks == 4);
  const Settings mics = load_foreign(
      kBase + "zero_optimization: {stage: 3, mics_shard_size: 8, zero_hpz_partition_size: 8}\n");
  CHECK(mics.parallelism.shard_ranks == 8);
  CHECK(load_foreign(kBase + "zero_optimization: {stage: 3, mics_shard_size: -1}\n")
            .parallelism.shard_ranks == 0);
}

TEST_CASE("what Accelerate says of memory and devices") {
  const Settings s = load_foreign(kBase + "distributed_type: MULTI_CPU\nnum_processes: 16\n" +
                                  "mixed_precision: 'no'\nuse_cpu: true\n");
  CHECK(s.device == DeviceChoice::cpu);
  CHECK(s.notes.processes == 16);
  CHECK_THAT(error_of_foreign(kBase + "distributed_type: MULTI_CPU\nnum_processes: two\n"),
             Contains("num_processes: expected a whole number >= 1, got \"two\""));
  CHECK(load_foreign(kBase + fsdp("fsdp_activation_checkpointing: true")).step.decoder.recompute ==
        Recompute::block);
  CHECK(load_foreign(kBase + "distributed_type: 'NO'\nfp16: true\n").precision.mixed_precision ==
        MixedPrecision::fp16);
  const Settings megatron = load_foreign(
      kBase +
      "distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_tp_degree: 4, "
      "megatron_lm_pp_degree: 2, megatron_lm_context_parallel_size: 2, "
      "megatron_lm_use_distributed_optimizer: true, megatron_lm_gradient_clipping: 0.5, "
      "megatron_lm_recompute_activations: true}\n");
  CHECK(megatron.parallelism.zero_stage == 1);
  CHECK(megatron.parallelism.layout == ParallelLayout{.tensor = 4, .context = 2, .pipeline = 2});
  CHECK(load_foreign(kBase + "distributed_type: FSDP\nparallelism_config: "
                             "{parallelism_config_tp_size: 2}\n")
            .parallelism.layout.tensor == 2);
  CHECK(load_foreign(kBase + "distributed_type: FSDP\nparallelism_config: "
                             "{parallelism_config_cp_size: 1, parallelism_config_sp_size: 2}\n")
            .parallelism.layout.context == 2);
  const auto parallelism = [](const std::string& keys) {
    return kBase + "distributed_type: FSDP\nparallelism_config: {" + keys + "}\n";
  };
  for (const char* strategy : {"", ", parallelism_config_cp_comm_strategy: allgather",
                               ", parallelism_config_cp_comm_strategy: alltoall"}) {
    CHECK(load_foreign(parallelism(std::string("parallelism_config_cp_size: 4") + strategy))
              .parallelism.layout ==
          ParallelLayout{.context = 4, .context_kind = ContextKind::gather});
  }
  CHECK(
      load_foreign(parallelism("parallelism_config_sp_size: 4")).parallelism.layout.context_kind ==
      ContextKind::heads);
  CHECK_THAT(error_of_foreign(parallelism("parallelism_config_cp_size: 2, "
                                          "parallelism_config_sp_size: 2")),
             Contains("parallelism_config_sp_size: parallelism_config.parallelism_config_cp_size "
                      "shares the sequences already"));
  CHECK_THAT(error_of_foreign(parallelism("parallelism_config_cp_size: 2, "
                                          "parallelism_config_cp_comm_strategy: ring")),
             Contains("expected allgather or alltoall, got \"ring\""));
  CHECK(load_foreign(kBase + "context_parallel_size: 4\ncp_comm_type: p2p\n").parallelism.layout ==
        ParallelLayout{.context = 4, .context_kind = ContextKind::gather});
  CHECK(megatron.optimizer.grad_clip == 0.5);
  CHECK(megatron.step.decoder.recompute == Recompute::attention);
}

TEST_CASE("a file of another program alone lacks a model and data, at no line of its own") {
  const std::string error = error_of_foreign(
      "distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: true}\n");
  CHECK_THAT(error, Contains("run.yaml: model.preset: missing") &&
                        Contains("run.yaml: data.train: missing") &&
                        Contains("Files of other programs name no model and no data: put a "
                                 "run.yaml before it (the last file wins)"));
}

TEST_CASE("what Accelerate says and cannot be had is refused") {
  const auto error = [](const std::string& text) { return error_of_foreign(kBase + text); };
  CHECK_THAT(error(fsdp("fsdp_offload_params: maybe")),
             Contains("run.yaml:5:15: fsdp_config.fsdp_offload_params: expected cpu or none"));
  CHECK(load_foreign(kBase + fsdp("fsdp_offload_params: true")).optimizer.offloads);
  CHECK(!load_foreign(kBase + fsdp("fsdp_offload_params: false")).optimizer.offloads);
  for (const char* said : {"zero_optimization: {offload_optimizer: {device: cpu}}",
                           "zero_optimization: {stage: 3, offload_param: {device: cpu}}"}) {
    CHECK(load_foreign(kBase + "steps_per_print: 5\n" + said + "\n").optimizer.offloads);
  }
  const Settings megatron =
      load_foreign(kBase +
                   "optimizer_cpu_offload: true\nrecompute_granularity: selective\n"
                   "context_parallel_size: 2\n");
  CHECK(megatron.optimizer.offloads);
  CHECK(megatron.step.decoder.recompute == Recompute::attention);
  CHECK(megatron.parallelism.layout.context == 2);
  CHECK(megatron.parallelism.layout.context_kind == ContextKind::gather);
  CHECK_THAT(error(fsdp("fsdp_shardng_strategy: 1")), Contains("did you mean"));
  CHECK_THAT(error(fsdp("fsdp_sharding_strategy: SOME")), Contains("expected FULL_SHARD"));
  CHECK_THAT(error("distributed_type: MULTI_XPU\n"), Contains("expected NO, MULTI_CPU"));
  CHECK_THAT(error("compute_environment: AMAZON_SAGEMAKER\n"), Contains("only LOCAL_MACHINE"));
  CHECK_THAT(error("fsdp_config: {fsdp_version: 2}\n"), Contains("distributed_type"));
  CHECK_THAT(error("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, "
                   "offload_optimizer_device: nvme}\n"),
             Contains("deepspeed_config.offload_optimizer_device: nothing is moved to NVMe"));
  CHECK(error("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, "
              "offload_optimizer_device: none, offload_param_device: none}\n") == "loaded");
  CHECK_THAT(error(fsdp("fsdp_sharding_strategy: 1") + "parallelism: {zero_stage: 1}\n"),
             Contains("says 3, but parallelism.zero_stage at run.yaml:6:15 says 1"));
}

TEST_CASE("a misspelt key of an Accelerate file is one error") {
  const auto error = [](const std::string& precision, const std::string& type) {
    return error_of_foreign(kBase + type + ": FSDP\n" + precision + R"(: fp8
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}
fp8_config: {backend: TE, fp8_format: HYBRID, amax_history_length: 16, margin: 0}
machine_rank: 0
)");
  };
  CHECK(error("mixed_precision", "distributed_type") == "loaded");
  CHECK(error("mixed_precison", "distributed_type") ==
        "run.yaml:5:1: mixed_precison: unknown key; did you mean \"mixed_precision\"?");
  CHECK(error("mixed_precision", "distribted_type") ==
        "run.yaml:4:1: distribted_type: unknown key; did you mean \"distributed_type\"?");
  // What is wrong with the values themselves is still said.
  CHECK_THAT(error_of_foreign(kBase + "mixed_precison: fp8\nfp8_config: {margin: x}\n"),
             Contains("mixed_precison") && Contains("fp8_config.margin: expected"));
  CHECK_THAT(error_of_foreign(kBase + "mixed_precision: bf16\nfp8_config: {backend: TE}\n"),
             Contains("fp8_config.backend: has no meaning with mixed_precision: bf16"));
}

TEST_CASE("a configuration of DeepSpeed") {
  const Settings s = load_foreign(R"({
	"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
	"gradient_clipping": 0.5, "steps_per_print": 7, "wall_clock_breakdown": false,
	"bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 0},
	"optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "weight_decay": "auto"}},
	"scheduler": {"type": "WarmupCosineLR",
	              "params": {"warmup_num_steps": 10, "total_num_steps": 100, "cos_min_ratio": 0.1}},
	"zero_optimization": {"stage": 3, "offload_param": {"device": "none"},
	                      "stage3_max_live_parameters": 1e9, "reduce_bucket_size": "auto"},
	"model": {"preset": "toy"}, "data": {"train": "a.txt"}
})");
  CHECK(s.training.global_batch_size == 32);
  CHECK(s.step.micro_batch_size == 4);
  CHECK(s.notes.processes == 4);
  CHECK(s.optimizer.grad_clip == 0.5);
  CHECK(s.logging.interval == 7);
  CHECK(s.precision.mixed_precision == MixedPrecision::bf16);
  CHECK(s.optimizer.name == "adamw");
  CHECK(s.optimizer.lr == 2e-4);
  CHECK(s.optimizer.betas == std::array<double, 2>{0.9, 0.999});
  CHECK(s.optimizer.weight_decay == Settings{}.optimizer.weight_decay);
  CHECK(
      says(s, "optimizer.type: AdamW read as optimizer.betas: [0.9, 0.999] (DeepSpeed's default)"));
  CHECK(s.scheduler.type == "cosine");
  CHECK(s.scheduler.warmup_steps == 10);
  CHECK(s.scheduler.min_lr == Approx(2e-5));
  CHECK(s.training.max_steps == 100);
  CHECK(s.parallelism.zero_stage == 3);
  CHECK(says(s, "\"auto\", so this program's own keys decide: "));
  CHECK(says(s, "zero_optimization.reduce_bucket_size"));
}

TEST_CASE("what DeepSpeed does where its file is silent") {
  const Settings s = load_foreign(kBase + "zero_optimization: {stage: 1}\n");
  CHECK(s.precision.mixed_precision == MixedPrecision::no);
  CHECK(says(s, "DeepSpeed trains in fp32"));
  CHECK(s.optimizer.grad_clip == 0);
  CHECK(load_foreign(kBase + "zero_optimization: {stage: 1}\nfp16: {enabled: auto}\n")
            .precision.mixed_precision == MixedPrecision::no);
  const Settings msamp = load_foreign(
      kBase + "steps_per_print: 5\nmsamp: {enabled: true, opt_level: O2, use_te: false}\n");
  CHECK(resolve_plan(msamp.precision).name == "msamp-o2");
}

TEST_CASE("DeepSpeed's schedules have its defaults") {
  const auto load = [](const std::string& text) {
    return load_foreign(kBase + "steps_per_print: 5\n" + text);
  };
  const Settings warm = load("scheduler: {type: WarmupLR}\n");
  CHECK(warm.scheduler.type == "constant");
  CHECK(warm.scheduler.warmup_steps == 1000);
  CHECK(warm.optimizer.lr == 1e-3);
  CHECK(says(warm, "with the logarithm of the step in DeepSpeed"));
  const Settings cosine = load(
      "optimizer: {type: Adam, params: {lr: 2e-4}}\n"
      "scheduler: {type: WarmupCosineLR, params: {warmup_num_steps: 5, warmup_type: linear}}\n");
  CHECK(cosine.scheduler.warmup_steps == 5);
  CHECK(cosine.scheduler.min_lr == Approx(2e-8));
  CHECK_FALSE(says(cosine, "logarithm"));
  const Settings silent = load("optimizer: {type: Adam, params: {lr: 2e-4}}\n");
  CHECK(silent.scheduler.type == "constant");
  CHECK(says(silent, "no scheduler read as scheduler.type: constant (DeepSpeed's default)"));
}

TEST_CASE("what DeepSpeed does and this program does not is refused") {
  const auto error = [](const std::string& text) {
    return error_of_foreign(kBase + "steps_per_print: 5\n" + text + "\n");
  };
  CHECK(error("bf16: {enabled: true}") == "loaded");
  CHECK_THAT(
      error("zero_optimization: {offload_optimizer: {device: nvme}}"),
      Contains("run.yaml:5:21: zero_optimization.offload_optimizer: nothing is moved to NVMe"));
  CHECK_THAT(error("zero_optimization: {stage: 3, zero_quantized_weights: true}"),
             Contains("no plan sends INT4 or INT8"));
  CHECK_THAT(error("zero_optimization: {stag: 3}"), Contains("did you mean \"stage\"?"));
  CHECK_THAT(error("optimizer: {type: Lamb, params: {lr: 1e-3}}"), Contains("expected Adam"));
  CHECK_THAT(error("optimizer: {type: Adam, params: {adam_w_mode: false, weight_decay: 0.1}}"),
             Contains("weight decay that is added to the gradient"));
  CHECK_THAT(error("scheduler: {type: OneCycle, params: {}}"), Contains("expected WarmupLR"));
  CHECK_THAT(error("fp16: {enabled: true, loss_scale: 128}"), Contains("a loss scale that stays"));
  CHECK(error("fp16: {enabled: true, loss_scale: 0}") == "loaded");
  CHECK_THAT(error("train_batch_size: 8\ntrain_micro_batch_size_per_gpu: 99999999999\n"
                   "gradient_accumulation_steps: 999999999999"),
             Contains("8 is not a multiple of"));
  CHECK(error("tensor_parallel: {autotp_size: 1}\nsequence_parallel_size: 2") == "loaded");
  CHECK_THAT(error("curriculum_learning: {enabled: true}"), Contains("changes the training"));
  CHECK(error("curriculum_learning: {enabled: false}") == "loaded");
  CHECK_THAT(error("data_types: {grad_accum_dtype: bf16}"), Contains("precision.weight_gradient"));
  CHECK_THAT(error("train_batch_size: 10\ntrain_micro_batch_size_per_gpu: 4\n"
                   "gradient_accumulation_steps: 1"),
             Contains("10 is not a multiple of"));
  CHECK_THAT(error("fp16: {enabled: true}\nmixed_precision: bf16"), Contains("says fp16, but"));
}

TEST_CASE("Accelerate's file names DeepSpeed's") {
  const Folder folder;
  folder.write("ds.json", R"({"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})");
  const std::string launch = folder.write(
      "launch.yaml",
      "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n");
  LoadRequest request;
  request.path = launch;
  request.further_paths = {folder.write("run.yaml", kBase)};
  const Settings s = load_settings(request);
  CHECK(s.parallelism.zero_stage == 2);
  CHECK(s.precision.mixed_precision == MixedPrecision::bf16);
  folder.write("ds.json", R"({"zero_optimization": {"stage": 5}})");
  CHECK_THROWS_WITH(load_settings(request), Contains("ds.json:1:33: zero_optimization.stage"));
  std::filesystem::remove(std::filesystem::path(launch).parent_path() / "ds.json");
  CHECK_THROWS_WITH(load_settings(request),
                    Contains("launch.yaml:2:43") && Contains("ds.json: cannot open"));
}

TEST_CASE("a second file replaces what the first says, and says so") {
  const Folder folder;
  LoadRequest request;
  request.path = folder.write("first.yaml", kBase + "optimizer: {lr: 1e-3, eps: 1e-7}\n");
  request.further_paths = {folder.write("second.yaml", "optimizer: {lr: 2e-3, eps: 1e-7}\n")};
  const Settings s = load_settings(request);
  CHECK(s.optimizer.lr == 2e-3);
  CHECK(says(s, "second.yaml:1:13: optimizer.lr replaces optimizer.lr ("));
  CHECK_FALSE(says(s, "eps"));
  request.sets = {"optimizer.lr=3e-3"};
  CHECK(load_settings(request).optimizer.lr == 3e-3);
  request.further_paths.push_back(folder.write("third.yaml", "optimizer: {lrr: 1}\n"));
  CHECK_THROWS_WITH(load_settings(request), Contains("third.yaml:1:13: optimizer.lrr"));
}

TEST_CASE("a file of another program in keys of this one") {
  const Folder folder;
  const std::string file =
      folder.write("launch.yaml", fsdp("fsdp_offload_params: false") + "mixed_precision: bf16\n");
  const Conversion alone = convert_file(file, "");
  CHECK(alone.keys == std::vector<std::string>{"mixed_precision", "parallelism.zero_stage"});
  CHECK(alone.settings.parallelism.zero_stage == 3);
  CHECK_FALSE(alone.notes.empty());
  CHECK(alone.processes == 0);
  const std::string eight = folder.write("eight.yaml", "distributed_type: NO\nnum_processes: 8\n");
  CHECK(convert_file(eight, "").processes == 8);
  const Conversion over = convert_file(file, folder.write("base.yaml", kBase));
  CHECK(over.settings.training.max_steps == 100);
  CHECK(over.settings.precision.mixed_precision == MixedPrecision::bf16);
}

}  // namespace
}  // namespace fp8train
