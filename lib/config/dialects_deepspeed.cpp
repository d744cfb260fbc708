// A configuration of DeepSpeed (docs/_pages/config-json.md, deepspeed/runtime/config.py,
// deepspeed/runtime/zero/config.py).

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/dialects_pass.h"
#include "config/field.h"
#include "config/scalar.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;

constexpr const char* kNoQuantizedZero =
    "what crosses the network is the plan's (`fp8train explain`), and no plan sends INT4 or INT8";
constexpr const char* kOtherTraining = "it changes the training, and is not here";

constexpr ForeignKey kTopLevel[] = {
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
    {"zenflow", Meaning::off, kOtherTraining},
    {"compile"},
    {"prescale_gradients"},
    {"gradient_predivide_factor"},
    {"fp32_allreduce"},
    {"seq_parallel_communication_data_type"},
    {"disable_allgather"},
    {"activation_checkpointing"},
    {"aio"},
    {"autotuning"},
    {"checkpoint"},
    {"comms_logger"},
    {"comet"},
    {"csv_monitor"},
    {"dataloader_drop_last"},
    {"dump_state"},
    {"flops_profiler"},
    {"hybrid_engine"},
    {"load_universal_checkpoint"},
    {"memory_breakdown"},
    {"nebula"},
    {"tensorboard"},
    {"timers"},
    {"use_data_before_expert_parallelism"},
    {"use_node_local_storage"},
    {"vocabulary_size"},
    {"wall_clock_breakdown"},
    {"wandb"},
    {"zero_allow_untested_optimizer"},
    {"zero_force_ds_cpu_optimizer"}};

constexpr ForeignKey kZero[] = {{"stage", Meaning::ours, "parallelism.zero_stage"},
                                {"offload_optimizer", Meaning::off, kNoOffload},
                                {"offload_param", Meaning::off, kNoOffload},
                                {"cpu_offload", Meaning::off, kNoOffload},
                                {"cpu_offload_params", Meaning::off, kNoOffload},
                                {"zero_quantized_weights", Meaning::off, kNoQuantizedZero},
                                {"zero_quantized_gradients", Meaning::off, kNoQuantizedZero},
                                {"zero_quantized_nontrainable_weights"},
                                {"zenflow", Meaning::off, kOtherTraining},
                                {"allgather_bucket_size"},
                                {"allgather_partitions"},
                                {"allgather_sequential"},
                                {"allow_untested_optimizer"},
                                {"contiguous_gradients"},
                                {"cpu_offload_use_pin_memory"},
                                {"elastic_checkpoint"},
                                {"enable_sanity_checks"},
                                {"find_unused_parameters"},
                                {"gather_16bit_weights_on_model_save"},
                                {"grad_hooks"},
                                {"ignore_unused_parameters"},
                                {"leaf_module"},
                                {"load_from_fp32_weights"},
                                {"log_trace_cache_warnings"},
                                {"max_live_parameters"},
                                {"max_reuse_distance"},
                                {"memory_efficient_linear"},
                                {"mics_hierarchical_params_gather"},
                                {"mics_shard_size"},
                                {"model_persistence_threshold"},
                                {"module_granularity_threshold"},
                                {"overlap_comm"},
                                {"param_persistence_threshold"},
                                {"pipeline_loading_checkpoint"},
                                {"prefetch_bucket_size"},
                                {"reduce_bucket_size"},
                                {"reduce_scatter"},
                                {"round_robin_gradients"},
                                {"save_muon_momentum_buffer_in_memory"},
                                {"sub_group_size"},
                                {"use_all_reduce_for_fetch_params"},
                                {"use_multi_rank_bucket_allreduce"},
                                {"zero_hpz_partition_size"},
                                {"zeropp_loco_param"}};

constexpr ForeignKey kHalf[] = {{"enabled", Meaning::special},
                                {"auto_cast"},
                                {"check_grad_overflow"},
                                {"consecutive_hysteresis"},
                                {"fp16_master_weights_and_grads", Meaning::special},
                                {"bf16_master_weights_and_grads", Meaning::special},
                                {"bf16_optimizer_states", Meaning::special},
                                {"immediate_grad_update"},
                                {"hysteresis"},
                                {"initial_scale_power"},
                                {"loss_scale"},
                                {"loss_scale_window"},
                                {"min_loss_scale"},
                                {"lower_precision_safe_modules"},
                                {"dtype", Meaning::special}};

constexpr ForeignKey kMsamp[] = {{"enabled", Meaning::special},
                                 {"opt_level", Meaning::ours, "fp8.opt_level"},
                                 {"use_te", Meaning::ours, "fp8.use_te"}};

constexpr ForeignKey kOptimizer[] = {{"lr", Meaning::ours, "optimizer.lr"},
                                     {"betas", Meaning::ours, "optimizer.betas"},
                                     {"eps", Meaning::ours, "optimizer.eps"},
                                     {"weight_decay", Meaning::ours, "optimizer.weight_decay"},
                                     {"momentum", Meaning::ours, "optimizer.momentum"},
                                     {"amsgrad", Meaning::off, kOtherTraining},
                                     {"nesterov", Meaning::off, kOtherTraining},
                                     {"adam_w_mode", Meaning::special},
                                     {"bias_correction", Meaning::special},
                                     {"max_grad_norm", Meaning::off, "use gradient_clipping"},
                                     {"torch_adam"},
                                     {"fused"},
                                     {"foreach"}};

/// What an optimizer does where the file does not say (DeepSpeed, ops/adam/fused_adam.py;
/// torch.optim.SGD).
constexpr Words kAdamDefaults[] = {{"lr", "1e-3"}, {"eps", "1e-8"}, {"weight_decay", "0"}};
constexpr Words kSgdDefaults[] = {{"lr", "1e-3"}, {"momentum", "0"}, {"weight_decay", "0"}};

constexpr ForeignKey kSchedule[] = {{"warmup_max_lr", Meaning::ours, "optimizer.lr"},
                                    {"warmup_num_steps", Meaning::ours, "scheduler.warmup_steps"},
                                    {"total_num_steps", Meaning::ours, "training.max_steps"},
                                    {"warmup_min_lr", Meaning::special},
                                    {"warmup_min_ratio", Meaning::special},
                                    {"warmup_type", Meaning::special},
                                    {"cos_min_ratio", Meaning::special},
                                    {"last_batch_iteration"}};

constexpr Words kSchedules[] = {
    {"warmuplr", "constant"}, {"warmupdecaylr", "linear"}, {"warmupcosinelr", "cosine"}};

const ForeignKey* find_top_level(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTopLevel), std::end(kTopLevel),
                                   [&](const ForeignKey& key) { return key.name == name; });
  return found == std::end(kTopLevel) ? nullptr : found;
}

}  // namespace

/// Names that no other program of these has at the top level.
bool Pass::is_deepspeed_file(const YamlNode& root) {
  for (const char* name : {"zero_optimization", "train_batch_size", "steps_per_print",
                           "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"}) {
    if (value_of(root, name) != nullptr) {
      return true;
    }
  }
  const YamlNode* half = value_of(root, "bf16");
  half = half == nullptr ? value_of(root, "fp16") : half;
  return half != nullptr && half->kind == Kind::map;
}

/// `optimizer` and `scheduler` are sections here too; DeepSpeed's have a type and params.
bool Pass::is_deepspeed(const Entry& entry) const {
  if (entry.name == "optimizer" || entry.name == "scheduler") {
    const bool typed =
        entry.node.kind == Kind::map && value_of(entry.node, "type") != nullptr &&
        (deepspeed_ || value_of(entry.node, "params") != nullptr);
    return typed;
  }
  return deepspeed_ && find_top_level(entry.name) != nullptr;
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
  foreign(*find_top_level(entry.name), entry, [this](const ForeignKey& key, const Entry& it) {
    if (key.name == "train_batch_size") {
      all_batches_ = it;
    } else if (key.name == "train_micro_batch_size_per_gpu") {
      micro_batch_ = it;
    } else if (key.name == "gradient_accumulation_steps") {
      accumulation_ = it;
    } else if (key.name == "zero_optimization") {
      zero(it);
    } else if (key.name == "msamp") {
      half_precision(it);
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
      const YamlNode* type = it.node.kind == Kind::map ? value_of(it.node, "grad_accum_dtype")
                                                       : &it.node;
      if (type == nullptr || is_off(*type) || is_auto(*type) || type->text == "fp32") {
        without_meaning(it);
      } else {
        complain(it, "which type gradients have, and cross the network in, is the plan's; "
                     "precision.roles changes it; remove it here");
      }
    } else {
      half_precision(it);
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
  const std::span<const ForeignKey> table = is_msamp ? std::span<const ForeignKey>(kMsamp) : kHalf;
  std::string name = entry.name == "bfloat16" ? "bf16" : entry.name;
  if (entry.name == "torch_autocast") {
    const std::string type = dtype == nullptr ? "bfloat16" : simplified(dtype->text);
    name = type.ends_with("float16") && !type.ends_with("bfloat16") ? "fp16" : "bf16";
  }
  section(entry, table, "", [&](const ForeignKey& key, const Entry& it) {
    if (key.name == "enabled") {
      put("mixed_precision", it, scalar(is_msamp ? "fp8" : name, it.node));
      if (is_msamp) {
        put("fp8.backend", it, scalar("msamp", it.node));
      }
    } else if (key.name == "dtype" || is_off(it.node)) {
      without_meaning(it);
    } else {
      complain(it, "which type masters and moments have is the plan's; precision.roles changes "
                   "it; remove it here");
    }
  });
}

void Pass::zero(const Entry& entry) {
  section(entry, kZero, "stage3_", {});
}

void Pass::deepspeed_optimizer(const Entry& entry) {
  const YamlNode& type = *value_of(entry.node, "type");
  const std::string name = simplified(type.text);
  const Entry type_entry = {"type", entry.spelled + ".type", entry.place, type};
  const bool adam = name == "adam" || name == "adamw" || name == "fusedadam";
  if (!adam && name != "sgd") {
    complain(type_entry, fmt::format("expected Adam, AdamW or SGD, got {}; Muon and its options "
                                     "are in optimizer.name and optimizer.muon",
                                     describe(type)));
    return;
  }
  put("optimizer.name", type_entry, scalar(adam ? "adamw" : "sgd", type));
  const YamlNode* params = value_of(entry.node, "params");
  const YamlNode none;
  const Entry inner = {"params", entry.spelled + ".params", entry.place,
                       params == nullptr ? none : *params};
  bool decoupled = true;
  section(inner, kOptimizer, "", [&](const ForeignKey& key, const Entry& it) {
    const auto value = flag(it);
    if (key.name == "adam_w_mode") {
      decoupled = value.value_or(true) || name == "adamw";
      without_meaning(it);
    } else if (value == false) {
      complain(it, "moments are always corrected for their bias here; remove it");
    } else {
      without_meaning(it);
    }
  });
  const YamlNode* decay = value_of(inner.node, "weight_decay");
  if (!decoupled && decay != nullptr && !is_off(*decay) && parse_number(decay->text) != 0.0) {
    complain(inner, "weight decay that is added to the gradient (adam_w_mode: false) is not here; "
                    "set it to 0, or take AdamW");
  }
  // What the file leaves to DeepSpeed is not what it is here.
  const std::span<const Words> defaults = adam ? std::span<const Words>(kAdamDefaults) : kSgdDefaults;
  for (const auto& [key, value] : defaults) {
    if (value_of(inner.node, key) == nullptr) {
      put(fmt::format("optimizer.{}", key), type_entry, scalar(std::string(value), type),
          " (DeepSpeed's default)");
    }
  }
  if (adam && value_of(inner.node, "betas") == nullptr) {
    YamlNode betas = scalar("", type);
    betas.kind = Kind::sequence;
    betas.items = {scalar("0.9", type), scalar("0.999", type)};
    put("optimizer.betas", type_entry, betas, " (DeepSpeed's default)");
  }
}

void Pass::deepspeed_schedule(const Entry& entry) {
  const YamlNode& type = *value_of(entry.node, "type");
  const Entry type_entry = {"type", entry.spelled + ".type", entry.place, type};
  const auto found = find_in(kSchedules, simplified(type.text));
  if (found == std::end(kSchedules)) {
    complain(type_entry, fmt::format("expected WarmupLR, WarmupDecayLR or WarmupCosineLR, got {}",
                                     describe(type)));
    return;
  }
  put("scheduler.type", type_entry, scalar(std::string(found->second), type));
  if (const YamlNode* params = value_of(entry.node, "params")) {
    const Entry inner = {"params", entry.spelled + ".params", entry.place, *params};
    section(inner, kSchedule, "",
            [&](const ForeignKey&, const Entry& it) { schedule_parameter(it, *params); });
  }
  const YamlNode* params = value_of(entry.node, "params");
  const YamlNode* form = params == nullptr ? nullptr : value_of(*params, "warmup_type");
  if (found->first != "warmupcosinelr" && (form == nullptr || form->text == "log")) {
    tell(fmt::format("{}: the learning rate rises linearly in the warm-up here, and with the "
                     "logarithm of the step in DeepSpeed (warmup_type: log)",
                     type_entry.spelled));
  }
}

void Pass::schedule_parameter(const Entry& entry, const YamlNode& params) {
  const auto value = parse_number(entry.node.text);
  const bool is_start = entry.name == "warmup_min_lr" || entry.name == "warmup_min_ratio";
  if (entry.name == "warmup_type" || (is_start && value == 0.0)) {
    without_meaning(entry);
  } else if (is_start) {
    tell(fmt::format("{}: the warm-up begins at a learning rate of 0 here", entry.spelled));
  } else {
    const YamlNode* lr = value_of(params, "warmup_max_lr");
    const YamlNode* optimizer = value_of(root_, "optimizer");
    const YamlNode* values = optimizer == nullptr ? nullptr : value_of(*optimizer, "params");
    lr = lr == nullptr && values != nullptr ? value_of(*values, "lr") : lr;
    const auto peak = lr == nullptr ? std::nullopt : parse_number(lr->text);
    if (!value || !peak) {
      complain(entry, "a fraction of a learning rate that the file does not give; set "
                      "scheduler.min_lr instead");
    } else {
      put("scheduler.min_lr", entry, scalar(fmt::format("{}", *value * *peak), entry.node));
    }
  }
}

/// train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * processes; any
/// of them may be missing.
void Pass::finish_batches() {
  const auto number = [](const std::optional<Entry>& entry) {
    return entry ? count_in(entry->node) : 0;
  };
  if (all_batches_) {
    put("training.global_batch_size", *all_batches_, all_batches_->node);
  }
  if (micro_batch_) {
    put("training.micro_batch_size", *micro_batch_, micro_batch_->node);
  }
  if (accumulation_ && !all_batches_) {
    put("training.gradient_accumulation_steps", *accumulation_, accumulation_->node);
  } else if (accumulation_) {
    without_meaning(*accumulation_);  // it follows from the other two and the number of ranks
  }
  const int64_t all = number(all_batches_);
  const int64_t step = number(micro_batch_) * number(accumulation_);
  if (all > 0 && step > 0) {
    if (all % step != 0) {
      complain(*all_batches_,
               fmt::format("{} is not a multiple of train_micro_batch_size_per_gpu * "
                           "gradient_accumulation_steps = {}",
                           all, step));
    } else {
      processes_ = all / step;
    }
  }
}

void Pass::finish_deepspeed() {
  finish_batches();
  if (deepspeed_ && value_of(root_, "gradient_clipping") == nullptr) {
    const Entry entry = {"gradient_clipping",
                         "no gradient_clipping",
                         {"gradient_clipping", root_.line, root_.column, {}},
                         scalar("0", root_)};
    put("optimizer.grad_clip", entry, scalar("0", root_), " (DeepSpeed's default: off)");
  }
}

}  // namespace fp8train::dialects
