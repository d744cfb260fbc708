#pragma once
// The keys of Accelerate's files and what they mean here, for accelerate.cpp.

#include <string_view>

#include "config/dialects/pass.h"

namespace fp8train::dialects::accelerate_keys {

using Meaning = ForeignKey::Meaning;
using Fate = ForeignValue::Fate;

constexpr ForeignValue kBackends[] = {{"transformerengine", Fate::ours, "te"},
                                      {"ao", Fate::ours, "torchao"},
                                      {"te", Fate::ours, "te"},
                                      {"msamp", Fate::ours, "msamp"},
                                      {"torchao", Fate::ours, "torchao"},
                                      {"*"}};
constexpr ForeignValue kFormats[] = {
    {"e5m2", Fate::refused,
     "E5M2 for all tensors does not train (TransformerEngine refuses it too); choose HYBRID or "
     "E4M3"},
    {"*"}};
constexpr ForeignValue kIgnoredSpelling[] = {
    {"*", Fate::ours, "", " (Accelerate itself ignores this spelling)"}};
constexpr ForeignValue kMxfp8[] = {{"true", Fate::ours, "mxfp8"},
                                   {"false", Fate::noted, "false is so without it"}};
constexpr ForeignValue kAllGather[] = {
    {"*", Fate::noted,
     "with ZeRO, weights are gathered in FP8 wherever GEMMs read one set of codes"}};
constexpr const char* kUnpadded =
    "nothing is padded; layers with a dimension that is not a multiple of 16 stay in high "
    "precision, and `fp8train explain` lists them";
constexpr ForeignValue kPadding[] = {{"true", Fate::noted, kUnpadded},
                                     {"false", Fate::noted, kUnpadded}};

/// The keys of fp8_config, without their optional prefix fp8_.
constexpr ForeignKey kFp8Keys[] = {
    {"backend", Meaning::values, "fp8.backend", kBackends},
    {"format", Meaning::values, "fp8.format", kFormats},
    {"margin", Meaning::ours, "fp8.margin"},
    {"interval", Meaning::ours, "fp8.interval"},
    {"amax_history_len", Meaning::ours, "fp8.amax_history_len"},
    {"amax_history_length", Meaning::values, "fp8.amax_history_len", kIgnoredSpelling},
    {"amax_compute_algo", Meaning::ours, "fp8.amax_compute_algo"},
    {"amax_compute_algorithm", Meaning::values, "fp8.amax_compute_algo", kIgnoredSpelling},
    {"override_linear_precision", Meaning::special},
    {"use_autocast_during_eval", Meaning::ours, "fp8.use_autocast_during_eval"},
    {"use_mxfp8_block_scaling", Meaning::values, "fp8.recipe", kMxfp8},
    {"dpa", Meaning::ours, "fp8.attention"},
    {"mha", Meaning::off,
     "q, k, v and the output of attention leave linear layers as they are; fp8_dpa computes "
     "attention itself in FP8"},
    {"opt_level", Meaning::ours, "fp8.opt_level"},
    {"optimization_level", Meaning::values, "fp8.opt_level", kIgnoredSpelling},
    {"enable_fsdp_float8_all_gather", Meaning::values, "", kAllGather},
    {"pad_inner_dim", Meaning::values, "", kPadding}};

constexpr ForeignValue kEnvironments[] = {
    {"localmachine", Fate::ignored},
    {"*", Fate::refused, "only LOCAL_MACHINE: jobs in a cloud are not started from here"}};
constexpr ForeignValue kUseCpu[] = {{"true", Fate::ours, "cpu"}, {"false", Fate::ignored}};
constexpr ForeignValue kUseFp16[] = {{"true", Fate::ours, "fp16"}, {"false", Fate::ignored}};
constexpr ForeignValue kTypes[] = {
    {"no", Fate::ignored},
    {"false", Fate::ignored},
    {"multigpu", Fate::ignored},
    {"multicpu", Fate::ours, "cpu"},
    {"fsdp", Fate::noted, "{}, so that fsdp_config counts"},
    {"deepspeed", Fate::noted, "{}, so that deepspeed_config counts"},
    {"megatronlm", Fate::noted, "{}, so that megatron_lm_config counts"}};

/// Keys at the top level; sections that say how work is laid over processes are read by finish().
constexpr ForeignKey kLaunchKeys[] = {{"compute_environment", Meaning::values, "", kEnvironments},
                                      {"distributed_type", Meaning::values, "device", kTypes,
                                       "NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM"},
                                      {"num_processes", Meaning::special},
                                      {"use_cpu", Meaning::values, "device", kUseCpu},
                                      {"fp16", Meaning::values, "mixed_precision", kUseFp16}};
constexpr ForeignTable kLaunch = {
    kLaunchKeys,
    "num_machines machine_rank main_process_ip main_process_port rdzv_backend same_network "
    "downcast_bf16 main_training_function debug enable_cpu_affinity gpu_ids dynamo_backend "
    "dynamo_config ipex_config mpirun_config command_file commands"};

/// Sections, and what counts with a type: the section, and the ZeRO stage without it
/// (FullyShardedDataParallelPlugin and DeepSpeedPlugin of accelerate/utils/dataclasses.py).
constexpr std::string_view kSections[] = {"fsdp_config", "deepspeed_config", "megatron_lm_config",
                                          "parallelism_config", "tp_config"};
constexpr Words kSectionOfType[] = {{"fsdp", "fsdp_config"},
                                    {"deepspeed", "deepspeed_config"},
                                    {"megatronlm", "megatron_lm_config"}};
constexpr Words kStageWithout[] = {
    {"fsdp_config", "3"}, {"deepspeed_config", "2"}, {"megatron_lm_config", "0"}};

constexpr ForeignValue kCheckpointing[] = {{"true", Fate::ours, "block"},
                                           {"false", Fate::ours, "none"}};
constexpr ForeignKey kFsdpKeys[] = {
    {"sharding_strategy reshard_after_forward", Meaning::special},
    {"activation_checkpointing", Meaning::values, "model.recompute", kCheckpointing},
    {"offload_params", Meaning::offload, kWeightsStay}};
constexpr ForeignTable kFsdp = {
    kFsdpKeys,
    "version auto_wrap_policy backward_prefetch backward_prefetch_policy forward_prefetch "
    "cpu_ram_efficient_loading state_dict_type sync_module_states use_orig_params "
    "transformer_layer_cls_to_wrap min_num_params ignored_modules"};

/// torch.distributed.fsdp.ShardingStrategy, by name or number, and the ZeRO stage that stores as
/// much on each rank.
constexpr Words kStrategies[] = {
    {"true", "3"},        {"false", "2"}, {"fullshard", "3"},        {"1", "3"},
    {"shardgradop", "2"}, {"2", "2"},     {"noshard", "0"},          {"3", "0"},
    {"hybridshard", "3"}, {"4", "3"},     {"hybridshardzero2", "2"}, {"5", "2"}};

constexpr ForeignKey kDeepspeedKeys[] = {
    {"zero_stage", Meaning::ours, "parallelism.zero_stage"},
    {"gradient_accumulation_steps", Meaning::ours, "training.gradient_accumulation_steps"},
    {"gradient_clipping deepspeed_config_file", Meaning::special},
    {"offload_optimizer_device", Meaning::offload},
    {"offload_param_device", Meaning::offload, kWeightsStay}};
constexpr ForeignTable kDeepspeed = {
    kDeepspeedKeys,
    "offload_optimizer_nvme_path offload_param_nvme_path zero3_init_flag "
    "zero3_save_16bit_model deepspeed_hostfile deepspeed_multinode_launcher "
    "deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_moe_layer_cls_names"};

constexpr ForeignValue kRecompute[] = {
    {"true", Fate::ours, "attention", " (Megatron stores q, k and v)"},
    {"false", Fate::ours, "none"}};
constexpr ForeignValue kDistributed[] = {{"true", Fate::ours, "1"}, {"false", Fate::ours, "0"}};
constexpr ForeignKey kMegatronKeys[] = {
    {"tp_degree", Meaning::ours, "parallelism.tensor"},
    {"pp_degree", Meaning::ours, "parallelism.pipeline"},
    {"context_parallel_size", Meaning::ours, "parallelism.context"},
    {"expert_model_parallel_size", Meaning::ours, "parallelism.expert"},
    {"num_micro_batches", Meaning::ours, "training.gradient_accumulation_steps"},
    {"recompute_activations", Meaning::values, "model.recompute", kRecompute},
    {"use_distributed_optimizer", Meaning::values, "parallelism.zero_stage", kDistributed},
    {"gradient_clipping", Meaning::ours, "optimizer.grad_clip"}};

constexpr ForeignValue kSizeAboveOne[] = {{"1", Fate::ignored}, {"*"}};
/// Both strategies of TorchContextParallelConfig move keys and values, and no heads.
constexpr const char* kKeysMove =
    "with cp_size ranks gather keys and values (parallelism.context_kind)";
constexpr ForeignValue kStrategiesOfContext[] = {{"allgather", Fate::noted, kKeysMove},
                                                 {"alltoall", Fate::noted, kKeysMove}};
constexpr ForeignKey kParallelismKeys[] = {
    {"tp_size", Meaning::ours, "parallelism.tensor"},
    {"cp_size sp_size", Meaning::special},
    {"cp_comm_strategy", Meaning::values, "", kStrategiesOfContext, "allgather or alltoall"},
    {"dp_shard_size", Meaning::values, "parallelism.shard_ranks", kSizeAboveOne}};
constexpr ForeignTable kParallelism = {kParallelismKeys,
                                       "dp_replicate_size cp_backend sp_backend sp_seq_length "
                                       "sp_seq_length_is_variable sp_attn_implementation"};
constexpr ForeignKey kTensorParallelKeys[] = {{"tp_size", Meaning::ours, "parallelism.tensor"}};

}  // namespace fp8train::dialects::accelerate_keys
