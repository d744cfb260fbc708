// A configuration of DeepSpeed (docs/_pages/config-json.md, deepspeed/runtime/{config, engine,
// lr_schedules, zero/config}.py).

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/dialects/pass.h"
#include "config/fields/field.h"
#include "config/fields/scalar.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;
using Fate = ForeignValue::Fate;

constexpr const char* kDefault = " (DeepSpeed's default)";
constexpr const char* kNoQuantizedZero =
    "the plan decides what crosses the network (`fp8train explain`), and no plan sends INT4 or "
    "INT8";

constexpr ForeignKey kTopLevelKeys[] = {
    {"train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps fp16 bf16 "
     "bfloat16 torch_autocast zero_optimization msamp communication_data_type data_types "
     "compression_training tensor_parallel pipeline",
     Meaning::special},
    {"gradient_clipping", Meaning::ours, "optimizer.grad_clip"},
    {"steps_per_print", Meaning::ours, "logging.interval"},
    {"amp", Meaning::off, "NVIDIA Apex's automatic mixed precision is not here; use bf16 or fp16"},
    {"sparse_gradients sparse_attention curriculum_learning data_efficiency progressive_layer_drop "
     "eigenvalue quantize_training weight_quantization zenflow",
     Meaning::off, kOtherTraining},
    {"elasticity", Meaning::off, "the number of ranks is fixed for a run"},
    {"sequence_parallel_size", Meaning::ours, "parallelism.context"}};
constexpr ForeignTable kTopLevel = {
    kTopLevelKeys,
    "compile prescale_gradients gradient_predivide_factor fp32_allreduce "
    "seq_parallel_communication_data_type disable_allgather activation_checkpointing aio "
    "autotuning checkpoint comms_logger comet csv_monitor cuda_visible_devices "
    "dataloader_drop_last dump_state flops_profiler hybrid_engine load_universal_checkpoint "
    "memory_breakdown nebula tensorboard timers use_data_before_expert_parallelism "
    "use_node_local_storage vocabulary_size wall_clock_breakdown wandb "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"};

constexpr ForeignValue kMicsSize[] = {{"1", Fate::ignored}, {"*"}};  // "-1" is off
constexpr ForeignKey kZeroKeys[] = {
    {"stage", Meaning::ours, "parallelism.zero_stage"},
    {"mics_shard_size", Meaning::values, "parallelism.shard_ranks", kMicsSize},
    {"offload_optimizer cpu_offload", Meaning::offload},
    {"offload_param cpu_offload_params", Meaning::offload, kWeightsStay},
    {"zero_quantized_weights zero_quantized_gradients", Meaning::off, kNoQuantizedZero},
    {"zenflow", Meaning::off, kOtherTraining}};
constexpr ForeignTable kZero = {
    kZeroKeys,
    "zero_quantized_nontrainable_weights allgather_bucket_size allgather_partitions "
    "allgather_sequential allow_untested_optimizer contiguous_gradients "
    "cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks "
    "find_unused_parameters gather_16bit_weights_on_model_save grad_hooks "
    "ignore_unused_parameters leaf_module load_from_fp32_weights log_trace_cache_warnings "
    "max_live_parameters max_reuse_distance memory_efficient_linear "
    "mics_hierarchical_params_gather model_persistence_threshold "
    "module_granularity_threshold overlap_comm param_persistence_threshold "
    "pipeline_loading_checkpoint prefetch_bucket_size reduce_bucket_size reduce_scatter "
    "round_robin_gradients save_muon_momentum_buffer_in_memory sub_group_size "
    "use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zero_hpz_partition_size "
    "zeropp_loco_param"};

constexpr ForeignKey kHalfKeys[] = {
    {"enabled fp16_master_weights_and_grads bf16_master_weights_and_grads bf16_optimizer_states "
     "dtype",
     Meaning::special},
    {"loss_scale", Meaning::off,
     "a loss scale that stays the same is not here; 0 scales dynamically, as the plan fp16 does"}};
constexpr ForeignTable kHalf = {
    kHalfKeys,
    "auto_cast check_grad_overflow consecutive_hysteresis immediate_grad_update hysteresis "
    "initial_scale_power loss_scale_window min_loss_scale lower_precision_safe_modules"};

constexpr ForeignKey kMsamp[] = {{"enabled", Meaning::special},
                                 {"opt_level", Meaning::ours, "fp8.opt_level"},
                                 {"use_te", Meaning::ours, "fp8.use_te"}};

constexpr ForeignValue kCorrected[] = {
    {"true", Fate::ignored},
    {"false", Fate::refused, "moments are always corrected for their bias here; remove it"}};
constexpr ForeignValue kDecoupled[] = {{"true", Fate::ignored}, {"false", Fate::ignored}};
constexpr ForeignKey kOptimizerKeys[] = {{"lr", Meaning::ours, "optimizer.lr"},
                                         {"betas", Meaning::ours, "optimizer.betas"},
                                         {"eps", Meaning::ours, "optimizer.eps"},
                                         {"weight_decay", Meaning::ours, "optimizer.weight_decay"},
                                         {"momentum", Meaning::ours, "optimizer.momentum"},
                                         {"amsgrad nesterov", Meaning::off, kOtherTraining},
                                         {"adam_w_mode", Meaning::values, "", kDecoupled},
                                         {"bias_correction", Meaning::values, "", kCorrected},
                                         {"max_grad_norm", Meaning::off, "use gradient_clipping"}};
constexpr ForeignTable kOptimizer = {kOptimizerKeys, "torch_adam fused foreach"};

/// The defaults of an optimizer's keys (DeepSpeed, ops/adam/fused_adam.py; torch.optim.SGD).
constexpr Words kAdamDefaults[] = {
    {"lr", "1e-3"}, {"eps", "1e-8"}, {"weight_decay", "0"}, {"betas", "[0.9, 0.999]"}};
constexpr Words kSgdDefaults[] = {{"lr", "1e-3"}, {"momentum", "0"}, {"weight_decay", "0"}};

constexpr ForeignKey kScheduleKeys[] = {
    {"warmup_max_lr", Meaning::ours, "optimizer.lr"},
    {"warmup_num_steps", Meaning::ours, "scheduler.warmup_steps"},
    {"total_num_steps", Meaning::ours, "training.max_steps"},
    {"warmup_min_lr warmup_min_ratio warmup_type cos_min_ratio", Meaning::special}};
constexpr ForeignTable kSchedule = {kScheduleKeys, "last_batch_iteration"};

/// WarmupCosineLR's own default.
constexpr double kCosineMinRatio = 1e-4;

constexpr Words kSchedules[] = {
    {"warmuplr", "constant"}, {"warmupdecaylr", "linear"}, {"warmupcosinelr", "cosine"}};

class DeepSpeed : public Program {
 public:
  /// A file is known by names that no other program of these has at the top level.
  explicit DeepSpeed(Pass& pass) : Program(pass) {
    for (const char* name : {"zero_optimization", "train_batch_size", "steps_per_print",
                             "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"}) {
      is_here_ = is_here_ || value_of(pass.root(), name) != nullptr;
    }
    const YamlNode* half = value_of(pass.root(), "bf16");
    half = half == nullptr ? value_of(pass.root(), "fp16") : half;
    is_here_ = is_here_ || (half != nullptr && half->kind == Kind::map);
  }

  /// `optimizer` and `scheduler` are sections here too; DeepSpeed's have a type and params.
  bool recognizes(const Entry& entry) const override {
    if (entry.name == "optimizer" || entry.name == "scheduler") {
      return entry.node.kind == Kind::map && value_of(entry.node, "type") != nullptr &&
             (is_here_ || value_of(entry.node, "params") != nullptr);
    }
    return is_here_ && find_key(kTopLevel, entry.name);
  }

  void read(const Entry& entry) override {
    if (entry.name == "optimizer") {
      optimizer(entry);
    } else if (entry.name == "scheduler") {
      schedule(entry);
    } else {
      pass_.key(entry, kTopLevel, [this](const Entry& it) { top_level(it); });
    }
  }

  void finish() override {
    finish_batches();
    if (half_on_) {
      pass_.state.halves.push_back(*half_on_);
    }
    if (!is_here_) {
      return;
    }
    const YamlNode& root = pass_.root();
    const auto put_default = [this](std::string_view key, const char* spelled,
                                    const YamlNode& origin, const char* text, const char* remark) {
      const YamlNode node = value(text, origin);
      pass_.put(key, {spelled, spelled, {spelled, node.line, node.column, {}}, node}, node, remark);
    };
    if (!half_ && !pass_.state.included) {
      pass_.state.fp32 =
          State::Switch{pass_.given({"", "", {"", root.line, root.column, {}}, {}}), false};
    }
    if (value_of(root, "gradient_clipping") == nullptr) {
      put_default("optimizer.grad_clip", "no gradient_clipping", root, "0",
                  ": 0 (DeepSpeed's default)");
    }
    const YamlNode* optimizer = value_of(root, "optimizer");
    if (optimizer != nullptr && value_of(root, "scheduler") == nullptr) {
      put_default("scheduler.type", "no scheduler", *optimizer, "constant",
                  ": constant (DeepSpeed's default)");
    }
  }

 private:
  void top_level(const Entry& it) {
    const std::string& name = it.name;
    if (name == "train_batch_size") {
      all_batches_ = it;
    } else if (name == "train_micro_batch_size_per_gpu") {
      micro_batch_ = it;
    } else if (name == "gradient_accumulation_steps") {
      accumulation_ = it;
    } else if (name == "zero_optimization") {
      pass_.section(it, kZero, "stage3_");
    } else if (name == "compression_training") {
      pass_.complain(it, fmt::format("{}; remove it", kOtherTraining));
    } else if (name == "tensor_parallel") {
      size_of_axis(it, "autotp_size", "parallelism.tensor");
    } else if (name == "pipeline") {
      size_of_axis(it, "stages", "parallelism.pipeline");
    } else if (name == "communication_data_type" || name == "data_types") {
      const YamlNode* type =
          it.node.kind == Kind::map ? value_of(it.node, "grad_accum_dtype") : &it.node;
      if (type == nullptr || is_off(*type) || is_auto(*type) || type->text == "fp32") {
        pass_.without_meaning(it);
      } else {
        pass_.complain(it,
                       "the plan decides the type of gradients in memory and on the network "
                       "(precision.weight_gradient, precision.gradient_wire); remove it here");
      }
    } else {
      half_precision(it);
    }
  }

  void size_of_axis(const Entry& it, const char* key, const char* ours) {
    const YamlNode* size = value_of(it.node, key);
    size == nullptr || is_off(*size)
        ? pass_.without_meaning(it)
        : pass_.put(ours, {key, it.spelled + "." + key, it.key, *size}, size->text, "");
  }

  /// fp16, bf16, torch_autocast and msamp: sections that switch a precision on.
  void half_precision(const Entry& entry) {
    if (entry.node.kind != Kind::map) {
      return pass_.complain(
          entry, fmt::format("expected a section of keys, got {}", describe(entry.node)));
    }
    const YamlNode* enabled = value_of(entry.node, "enabled");
    const YamlNode* dtype = value_of(entry.node, "dtype");
    const bool automatic = enabled != nullptr && is_auto(*enabled);
    const bool on = enabled != nullptr && !automatic && flag_in(*enabled) == true;
    half_ = half_ || automatic || on;
    if (!on && !automatic) {
      return pass_.without_meaning(entry);
    }
    const bool is_msamp = entry.name == "msamp";
    std::string type = entry.name == "bfloat16" ? "bf16" : entry.name;
    if (entry.name == "torch_autocast") {
      const std::string written = dtype == nullptr ? "bfloat16" : simplified(dtype->text);
      type = written.ends_with("float16") && !written.ends_with("bfloat16") ? "fp16" : "bf16";
    }
    pass_.section(entry, is_msamp ? ForeignTable{kMsamp} : kHalf, "", [&](const Entry& it) {
      if (it.name == "enabled" && is_msamp) {
        pass_.put("mixed_precision", it, "fp8");
        pass_.put("fp8.backend", it, "msamp");
      } else if (it.name == "enabled") {
        switch_half_on(type, it);
      } else if (it.name == "dtype" || is_off(it.node)) {
        pass_.without_meaning(it);
      } else {
        pass_.complain(it,
                       "the plan decides the type of masters and moments (precision.master_weight, "
                       "precision.moment1, precision.moment2); remove it here");
      }
    });
  }

  /// Other sources decide whether it counts: FP8 has precedence (Dialects::settle).
  void switch_half_on(const std::string& type, const Entry& entry) {
    if (half_on_ && half_on_->type != type) {
      return pass_.complain(
          entry, fmt::format("says {}, but {} at {} says {}; keep one of them", type,
                             half_on_->spelled, pass_.where(half_on_->mark), half_on_->type));
    }
    half_on_ = State::Half{pass_.given(entry), type};
  }

  void optimizer(const Entry& entry) {
    const YamlNode& type = *value_of(entry.node, "type");
    const std::string name = simplified(type.text);
    const Entry type_entry = {"type", entry.spelled + ".type", entry.key, type};
    const bool adam = name == "adam" || name == "adamw" || name == "fusedadam";
    if (!adam && name != "sgd") {
      return pass_.complain(
          type_entry,
          fmt::format("expected Adam, AdamW or SGD, got {}; Muon and its options are in "
                      "optimizer.name and optimizer.muon",
                      describe(type)));
    }
    pass_.put("optimizer.name", type_entry, adam ? "adamw" : "sgd");
    const YamlNode* given = value_of(entry.node, "params");
    const YamlNode params = given == nullptr ? YamlNode() : *given;
    const Entry inner = {"params", entry.spelled + ".params", entry.key, params};
    pass_.section(inner, kOptimizer, "");
    const YamlNode* mode = value_of(params, "adam_w_mode");
    const YamlNode* decay = value_of(params, "weight_decay");
    const bool coupled = mode != nullptr && flag_in(*mode) == false && name != "adamw";
    if (coupled && decay != nullptr && !is_off(*decay) && parse_number(decay->text) != 0.0) {
      pass_.complain(inner,
                     "weight decay that is added to the gradient (adam_w_mode: false) is not "
                     "here; set it to 0, or take AdamW");
    }
    // DeepSpeed's defaults are not those of this program.
    for (const auto& [key, text] :
         adam ? std::span<const Words>(kAdamDefaults) : std::span<const Words>(kSgdDefaults)) {
      if (value_of(params, key) == nullptr) {
        pass_.put(fmt::format("optimizer.{}", key), type_entry, std::string(text), kDefault);
      }
    }
  }

  void schedule(const Entry& entry) {
    const YamlNode& type = *value_of(entry.node, "type");
    const Entry type_entry = {"type", entry.spelled + ".type", entry.key, type};
    const std::string name = simplified(type.text);
    const auto ours = find_word(kSchedules, name);
    if (!ours) {
      return pass_.complain(
          type_entry, fmt::format("expected WarmupLR, WarmupDecayLR or WarmupCosineLR, got {}",
                                  describe(type)));
    }
    pass_.put("scheduler.type", type_entry, *ours);
    const YamlNode* given = value_of(entry.node, "params");
    const YamlNode params = given == nullptr ? YamlNode() : *given;
    pass_.section({"params", entry.spelled + ".params", entry.key, params}, kSchedule, "",
                  [&](const Entry& it) { schedule_parameter(it, params); });
    const YamlNode* form = value_of(params, "warmup_type");
    if (form == nullptr || form->text == "log") {
      pass_.tell(
          fmt::format("{}: the learning rate rises linearly in the warm-up here, and with the "
                      "logarithm of the step in DeepSpeed (warmup_type: log)",
                      type_entry.spelled));
    }
    const auto put_default = [&](const char* theirs, const char* key, const std::string& text) {
      if (value_of(params, theirs) == nullptr) {
        pass_.put(key, type_entry, text, kDefault);
      }
    };
    put_default("warmup_num_steps", "scheduler.warmup_steps", "1000");
    if (name != "warmupcosinelr") {
      put_default("warmup_max_lr", "optimizer.lr", "0.001");
    } else if (const auto peak = peak_of(params)) {
      put_default("cos_min_ratio", "scheduler.min_lr", fmt::format("{}", kCosineMinRatio * *peak));
    }
  }

  /// The learning rate at the end of the warm-up, where the file gives it.
  std::optional<double> peak_of(const YamlNode& schedule) const {
    const YamlNode* lr = value_of(schedule, "warmup_max_lr");
    const YamlNode* optimizer = value_of(pass_.root(), "optimizer");
    const YamlNode* values = optimizer == nullptr ? nullptr : value_of(*optimizer, "params");
    lr = lr == nullptr && values != nullptr ? value_of(*values, "lr") : lr;
    return lr == nullptr ? std::nullopt : parse_number(lr->text);
  }

  void schedule_parameter(const Entry& entry, const YamlNode& params) {
    const auto number = parse_number(entry.node.text);
    const bool is_start = entry.name == "warmup_min_lr" || entry.name == "warmup_min_ratio";
    if (entry.name == "warmup_type" || (is_start && number == 0.0)) {
      pass_.without_meaning(entry);
    } else if (is_start) {
      pass_.tell(fmt::format("{}: the warm-up begins at a learning rate of 0 here", entry.spelled));
    } else if (const auto peak = peak_of(params); number && peak) {
      pass_.put("scheduler.min_lr", entry, fmt::format("{}", *number * *peak));
    } else {
      pass_.complain(entry,
                     "a fraction of a learning rate that the file does not give; set "
                     "scheduler.min_lr instead");
    }
  }

  /// train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * processes;
  /// any of them may be missing.
  void finish_batches() {
    const auto number = [](const std::optional<Entry>& entry) {
      return entry ? count_in(entry->node) : 0;
    };
    if (all_batches_) {
      pass_.put("training.global_batch_size", *all_batches_, all_batches_->node);
    }
    if (micro_batch_) {
      pass_.put("training.micro_batch_size", *micro_batch_, micro_batch_->node);
    }
    if (accumulation_ && !all_batches_) {
      pass_.put("training.gradient_accumulation_steps", *accumulation_, accumulation_->node);
    } else if (accumulation_) {
      pass_.tell(fmt::format("{} follows from train_batch_size and the number of ranks",
                             accumulation_->spelled));
    }
    const int64_t all = number(all_batches_);
    int64_t step = 0;
    const bool is_huge = __builtin_mul_overflow(number(micro_batch_), number(accumulation_), &step);
    if (all > 0 && (is_huge || (step > 0 && all % step != 0))) {
      pass_.complain(*all_batches_,
                     fmt::format("{} is not a multiple of train_micro_batch_size_per_gpu {} * "
                                 "gradient_accumulation_steps {}",
                                 all, number(micro_batch_), number(accumulation_)));
    } else if (all > 0 && step > 0) {
      pass_.state.processes = all / step * pass_.ranks_of_replica();
    }
  }

  bool is_here_ = false;  // the source is a file of DeepSpeed
  bool half_ = false;     // fp16 or bf16 is on, or left to whoever starts the run
  std::optional<State::Half> half_on_;
  std::optional<Entry> all_batches_, micro_batch_, accumulation_;
};

}  // namespace

std::unique_ptr<Program> deepspeed(Pass& pass) {
  return std::make_unique<DeepSpeed>(pass);
}

}  // namespace fp8train::dialects
