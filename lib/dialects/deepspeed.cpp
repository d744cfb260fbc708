// A configuration of DeepSpeed; its optimizer, schedule and batches are in
// deepspeed_training.cpp (docs/_pages/config-json.md, deepspeed/runtime/config.py,
// deepspeed/runtime/zero/config.py).

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/fields/field.h"
#include "config/fields/scalar.h"
#include "dialects/pass.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;

constexpr const char* kNoQuantizedZero =
    "the plan decides what crosses the network (`fp8train explain`), and no plan sends INT4 or "
    "INT8";

constexpr ForeignKey kTopLevelKeys[] = {
    {"train_batch_size", Meaning::special},
    {"train_micro_batch_size_per_gpu", Meaning::special},
    {"gradient_accumulation_steps", Meaning::special},
    {"gradient_clipping", Meaning::ours, "optimizer.grad_clip"},
    {"steps_per_print", Meaning::ours, "logging.interval"},
    {"fp16", Meaning::special},
    {"bf16", Meaning::special},
    {"bfloat16", Meaning::special},
    {"torch_autocast", Meaning::special},
    {"zero_optimization", Meaning::special},
    {"msamp", Meaning::special},
    {"amp", Meaning::off, "NVIDIA Apex's automatic mixed precision is not here; use bf16 or fp16"},
    {"communication_data_type", Meaning::special},
    {"data_types", Meaning::special},
    {"sparse_gradients", Meaning::off, kOtherTraining},
    {"sparse_attention", Meaning::off, kOtherTraining},
    {"curriculum_learning", Meaning::off, kOtherTraining},
    {"data_efficiency", Meaning::off, kOtherTraining},
    {"progressive_layer_drop", Meaning::off, kOtherTraining},
    {"eigenvalue", Meaning::off, kOtherTraining},
    {"quantize_training", Meaning::off, kOtherTraining},
    {"compression_training", Meaning::special},
    {"weight_quantization", Meaning::off, kOtherTraining},
    {"elasticity", Meaning::off, "the number of ranks is fixed for a run"},
    {"tensor_parallel", Meaning::special},
    {"pipeline", Meaning::special},
    {"sequence_parallel_size", Meaning::one, kNoModelParallelism},
    {"zenflow", Meaning::off, kOtherTraining}};
constexpr ForeignTable kTopLevel = {
    kTopLevelKeys,
    "compile prescale_gradients gradient_predivide_factor fp32_allreduce "
    "seq_parallel_communication_data_type disable_allgather activation_checkpointing aio "
    "autotuning checkpoint comms_logger comet csv_monitor cuda_visible_devices "
    "dataloader_drop_last dump_state flops_profiler hybrid_engine load_universal_checkpoint "
    "memory_breakdown nebula tensorboard timers use_data_before_expert_parallelism "
    "use_node_local_storage vocabulary_size wall_clock_breakdown wandb "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"};

constexpr ForeignKey kZeroKeys[] = {{"stage", Meaning::ours, "parallelism.zero_stage"},
                                    {"offload_optimizer", Meaning::off, kNoOffload},
                                    {"offload_param", Meaning::off, kNoOffload},
                                    {"cpu_offload", Meaning::off, kNoOffload},
                                    {"cpu_offload_params", Meaning::off, kNoOffload},
                                    {"zero_quantized_weights", Meaning::off, kNoQuantizedZero},
                                    {"zero_quantized_gradients", Meaning::off, kNoQuantizedZero},
                                    {"zenflow", Meaning::off, kOtherTraining}};
constexpr ForeignTable kZero = {
    kZeroKeys,
    "zero_quantized_nontrainable_weights allgather_bucket_size allgather_partitions "
    "allgather_sequential allow_untested_optimizer contiguous_gradients "
    "cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks "
    "find_unused_parameters gather_16bit_weights_on_model_save grad_hooks "
    "ignore_unused_parameters leaf_module load_from_fp32_weights log_trace_cache_warnings "
    "max_live_parameters max_reuse_distance memory_efficient_linear "
    "mics_hierarchical_params_gather mics_shard_size model_persistence_threshold "
    "module_granularity_threshold overlap_comm param_persistence_threshold "
    "pipeline_loading_checkpoint prefetch_bucket_size reduce_bucket_size reduce_scatter "
    "round_robin_gradients save_muon_momentum_buffer_in_memory sub_group_size "
    "use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zero_hpz_partition_size "
    "zeropp_loco_param"};

constexpr ForeignKey kHalfKeys[] = {{"enabled", Meaning::special},
                                    {"fp16_master_weights_and_grads", Meaning::special},
                                    {"bf16_master_weights_and_grads", Meaning::special},
                                    {"bf16_optimizer_states", Meaning::special},
                                    {"loss_scale", Meaning::off,
                                     "a loss scale that stays the same is not here; 0 scales "
                                     "dynamically, as the plan fp16 does"},
                                    {"dtype", Meaning::special}};
constexpr ForeignTable kHalf = {
    kHalfKeys,
    "auto_cast check_grad_overflow consecutive_hysteresis immediate_grad_update hysteresis "
    "initial_scale_power loss_scale_window min_loss_scale lower_precision_safe_modules"};

constexpr ForeignKey kMsamp[] = {{"enabled", Meaning::special},
                                 {"opt_level", Meaning::ours, "fp8.opt_level"},
                                 {"use_te", Meaning::ours, "fp8.use_te"}};

}  // namespace

/// Names that no other program of these has at the top level.
void Pass::recognize_deepspeed() {
  for (const char* name : {"zero_optimization", "train_batch_size", "steps_per_print",
                           "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"}) {
    deepspeed_ = deepspeed_ || value_of(root_, name) != nullptr;
  }
  const YamlNode* half = value_of(root_, "bf16");
  half = half == nullptr ? value_of(root_, "fp16") : half;
  deepspeed_ = deepspeed_ || (half != nullptr && half->kind == Kind::map);
}

/// `optimizer` and `scheduler` are sections here too; DeepSpeed's have a type and params.
bool Pass::is_deepspeed(const Entry& entry) const {
  if (entry.name == "optimizer" || entry.name == "scheduler") {
    return entry.node.kind == Kind::map && value_of(entry.node, "type") != nullptr &&
           (deepspeed_ || value_of(entry.node, "params") != nullptr);
  }
  return deepspeed_ && find_key(kTopLevel, entry.name);
}

void Pass::deepspeed(const Entry& entry) {
  changed_ = true;
  if (entry.name == "optimizer") {
    deepspeed_optimizer(entry);
    return;
  }
  if (entry.name == "scheduler") {
    deepspeed_schedule(entry);
    return;
  }
  foreign(*find_key(kTopLevel, entry.name), entry, [this](const ForeignKey& key, const Entry& it) {
    if (key.name == "train_batch_size") {
      all_batches_ = it;
    } else if (key.name == "train_micro_batch_size_per_gpu") {
      micro_batch_ = it;
    } else if (key.name == "gradient_accumulation_steps") {
      accumulation_ = it;
    } else if (key.name == "zero_optimization") {
      zero(it);
    } else if (key.name == "compression_training") {
      complain(it, fmt::format("{}; remove it", kOtherTraining));
    } else if (key.name == "tensor_parallel" || key.name == "pipeline") {
      const YamlNode* size = value_of(it.node, key.name == "pipeline" ? "stages" : "autotp_size");
      if (size != nullptr && size->text != "1" && !is_off(*size)) {
        complain(it, fmt::format("{}; remove it", kNoModelParallelism));
      } else {
        without_meaning(it);
      }
    } else if (key.name == "communication_data_type" || key.name == "data_types") {
      const YamlNode* type =
          it.node.kind == Kind::map ? value_of(it.node, "grad_accum_dtype") : &it.node;
      if (type == nullptr || is_off(*type) || is_auto(*type) || type->text == "fp32") {
        without_meaning(it);
      } else {
        complain(it,
                 "the plan decides the type of gradients in memory and on the network "
                 "(precision.weight_gradient, precision.gradient_wire); remove it here");
      }
    } else {
      half_precision(it);  // fp16, bf16, torch_autocast, msamp
    }
  });
}

/// fp16, bf16, torch_autocast and msamp: sections that switch a precision on.
void Pass::half_precision(const Entry& entry) {
  if (entry.node.kind != Kind::map) {
    complain(entry, fmt::format("expected a section of keys, got {}", describe(entry.node)));
    return;
  }
  const YamlNode* enabled = value_of(entry.node, "enabled");
  const YamlNode* dtype = value_of(entry.node, "dtype");
  const bool automatic = enabled != nullptr && is_auto(*enabled);
  const bool on = enabled != nullptr && !automatic && flag_in(*enabled) == true;
  half_ = half_ || automatic || on;
  if (!on && !automatic) {
    without_meaning(entry);
    return;
  }
  const bool is_msamp = entry.name == "msamp";
  const ForeignTable table = is_msamp ? ForeignTable{kMsamp} : kHalf;
  std::string name = entry.name == "bfloat16" ? "bf16" : entry.name;
  if (entry.name == "torch_autocast") {
    const std::string type = dtype == nullptr ? "bfloat16" : simplified(dtype->text);
    name = type.ends_with("float16") && !type.ends_with("bfloat16") ? "fp16" : "bf16";
  }
  section(entry, table, "", [&](const ForeignKey& key, const Entry& it) {
    if (key.name == "enabled" && is_msamp) {
      put("mixed_precision", it, scalar("fp8", it.node));
      put("fp8.backend", it, scalar("msamp", it.node));
    } else if (key.name == "enabled") {
      switch_half_on(name, it);
    } else if (key.name == "dtype" || is_off(it.node)) {
      without_meaning(it);
    } else {
      complain(it,
               "the plan decides the type of masters and moments (precision.master_weight, "
               "precision.moment1, precision.moment2); remove it here");
    }
  });
}

/// Other sources decide whether it counts: FP8 has precedence (Dialects::settle).
void Pass::switch_half_on(const std::string& type, const Entry& entry) {
  if (half_on_ && half_on_->type != type) {
    complain(entry,
             fmt::format("says {}, but {} at {} says {}; keep one of them", type, half_on_->spelled,
                         problems_.where({source_, half_on_->key.line, half_on_->key.column}),
                         half_on_->type));
    return;
  }
  half_on_ = {type, entry.spelled, entry.key};
}

void Pass::zero(const Entry& entry) {
  section(entry, kZero, "stage3_", {});
}

void Pass::finish_deepspeed() {
  finish_batches();
  if (deepspeed_ && value_of(root_, "gradient_clipping") == nullptr) {
    put_default("optimizer.grad_clip", "no gradient_clipping", scalar("0", root_),
                ": 0 (DeepSpeed's default)");
  }
  const YamlNode* optimizer = value_of(root_, "optimizer");
  if (deepspeed_ && optimizer != nullptr && value_of(root_, "scheduler") == nullptr) {
    put_default("scheduler.type", "no scheduler", scalar("constant", *optimizer),
                ": constant (DeepSpeed's default)");
  }
}

}  // namespace fp8train::dialects
