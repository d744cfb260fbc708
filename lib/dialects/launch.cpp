// A file of `accelerate config` without its fp8_config: how processes are started and how the
// work is laid over them (Accelerate, commands/config/config_args.py and cluster.py; files of its
// versions 0.4 to 1.13).

#include <fmt/format.h>

#include "base/nearest.h"
#include "base/text.h"
#include "config/fields/field.h"
#include "config/fields/field_table.h"
#include "config/fields/scalar.h"
#include "dialects/pass.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;

/// At the top level; sections that say how work is laid over processes are read by
/// launch_sections().
constexpr ForeignKey kLaunchKeys[] = {{"compute_environment", Meaning::special},
                                      {"distributed_type", Meaning::special},
                                      {"num_processes", Meaning::special},
                                      {"use_cpu", Meaning::special},
                                      {"fp16", Meaning::special}};
constexpr ForeignTable kLaunch = {
    kLaunchKeys,
    "num_machines machine_rank main_process_ip main_process_port rdzv_backend same_network "
    "downcast_bf16 main_training_function debug enable_cpu_affinity gpu_ids dynamo_backend "
    "dynamo_config ipex_config mpirun_config command_file commands"};

constexpr std::string_view kSections[] = {"fsdp_config", "deepspeed_config", "megatron_lm_config",
                                          "parallelism_config", "tp_config"};

/// Types of Accelerate that this program runs; the text is the section that counts with it.
constexpr Words kTypes[] = {{"no", ""},
                            {"false", ""},
                            {"multicpu", ""},
                            {"multigpu", ""},
                            {"fsdp", "fsdp_config"},
                            {"deepspeed", "deepspeed_config"},
                            {"megatronlm", "megatron_lm_config"}};

constexpr ForeignKey kFsdpKeys[] = {{"sharding_strategy", Meaning::special},
                                    {"reshard_after_forward", Meaning::special},
                                    {"activation_checkpointing", Meaning::special},
                                    {"offload_params", Meaning::off, kNoOffload}};
constexpr ForeignTable kFsdp = {
    kFsdpKeys,
    "version auto_wrap_policy backward_prefetch backward_prefetch_policy forward_prefetch "
    "cpu_ram_efficient_loading state_dict_type sync_module_states use_orig_params "
    "transformer_layer_cls_to_wrap min_num_params ignored_modules"};

/// torch.distributed.fsdp.ShardingStrategy, by name or number, and the ZeRO stage that stores as
/// much on each rank.
constexpr Words kStrategies[] = {
    {"fullshard", "3"}, {"1", "3"}, {"shardgradop", "2"}, {"2", "2"}, {"noshard", "0"},
    {"3", "0"},         {"4", "3"}, {"hybridshard", "3"}, {"5", "2"}, {"hybridshardzero2", "2"}};

constexpr ForeignKey kDeepspeedPluginKeys[] = {
    {"zero_stage", Meaning::ours, "parallelism.zero_stage"},
    {"gradient_accumulation_steps", Meaning::ours, "training.gradient_accumulation_steps"},
    {"gradient_clipping", Meaning::special},
    {"deepspeed_config_file", Meaning::special},
    {"offload_optimizer_device", Meaning::off, kNoOffload},
    {"offload_param_device", Meaning::off, kNoOffload}};
constexpr ForeignTable kDeepspeedPlugin = {
    kDeepspeedPluginKeys,
    "offload_optimizer_nvme_path offload_param_nvme_path zero3_init_flag "
    "zero3_save_16bit_model deepspeed_hostfile deepspeed_multinode_launcher "
    "deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_moe_layer_cls_names"};

constexpr ForeignKey kMegatronPluginKeys[] = {
    {"tp_degree", Meaning::one, kNoModelParallelism},
    {"pp_degree", Meaning::one, kNoModelParallelism},
    {"num_micro_batches", Meaning::ours, "training.gradient_accumulation_steps"},
    {"recompute_activations", Meaning::special},
    {"use_distributed_optimizer", Meaning::special},
    {"gradient_clipping", Meaning::ours, "optimizer.grad_clip"}};
constexpr ForeignTable kMegatronPlugin = {kMegatronPluginKeys, "sequence_parallelism"};

constexpr ForeignKey kParallelismKeys[] = {{"tp_size", Meaning::one, kNoModelParallelism},
                                           {"cp_size", Meaning::one, kNoModelParallelism},
                                           {"sp_size", Meaning::one, kNoModelParallelism}};
constexpr ForeignTable kParallelism = {
    kParallelismKeys,
    "dp_replicate_size dp_shard_size cp_comm_strategy cp_backend sp_backend sp_seq_length "
    "sp_seq_length_is_variable sp_attn_implementation"};

constexpr ForeignKey kTensorParallelPlugin[] = {{"tp_size", Meaning::one, kNoModelParallelism}};

bool is_section_of_accelerate(std::string_view name) {
  return std::find(std::begin(kSections), std::end(kSections), name) != std::end(kSections);
}

/// Names of keys at the top level: ours, and then those of Accelerate.
const std::vector<std::string>& names_at_top_level() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names = names_in_section("");
    for (const ForeignKey& key : kLaunchKeys) {
      names.emplace_back(key.name);
    }
    std::ranges::copy(split(kLaunch.without_meaning, ' '), std::back_inserter(names));
    names.insert(names.end(), std::begin(kSections), std::end(kSections));
    names.emplace_back("fp8_config");
    return names;
  }();
  return kNames;
}

}  // namespace

bool Pass::is_launch(std::string_view name) {
  return name == "fp8_config" || name == "compute_environment" || name == "distributed_type" ||
         is_section_of_accelerate(name);
}

bool Pass::is_launch_key(std::string_view name) {
  return is_section_of_accelerate(name) || find_key(kLaunch, name) || name.starts_with("tpu_");
}

void Pass::recognize_accelerate() {
  accelerate_ = std::any_of(root_.keys.begin(), root_.keys.end(),
                            [](const YamlKey& key) { return is_launch(key.text); });
  if (const YamlNode* type = value_of(root_, "distributed_type")) {
    distributed_ = simplified(type->text);
  }
}

std::string Pass::launch_key_near(const std::string& name) {
  const std::vector<std::string>& names = names_at_top_level();
  if (find_passive_key(name) != nullptr || std::ranges::find(names, name) != names.end()) {
    return "";
  }
  const std::string near = nearest_name(name, names);
  return near == "fp8_config" || is_launch_key(near) ? near : "";
}

bool Pass::is_accelerate(const Entry& entry) const {
  return accelerate_ && (entry.name == "fp8_config" || is_launch_key(entry.name) ||
                         !launch_key_near(entry.name).empty());
}

void Pass::read_accelerate(const Entry& entry) {
  if (entry.name == "fp8_config") {
    accelerate(entry);
  } else {
    launch(entry);
  }
}

void Pass::launch(const Entry& entry) {
  if (is_section_of_accelerate(entry.name)) {
    changed_ = true;  // by launch_sections()
    return;
  }
  const auto key = find_key(kLaunch, entry.name);
  if (!key && entry.name.starts_with("tpu_")) {
    without_meaning(entry);
    return;
  }
  if (!key) {
    misspelled_.push_back(launch_key_near(entry.name));
    complain(entry, fmt::format("unknown key; did you mean \"{}\"?", misspelled_.back()));
    return;
  }
  foreign(*key, entry, [this](const ForeignKey& which, const Entry& it) {
    const std::string text = simplified(it.node.text);
    if (which.name == "compute_environment" && text != "localmachine") {
      complain(it, "only LOCAL_MACHINE: jobs in a cloud are not started from here");
    } else if (which.name == "distributed_type" && find_in(kTypes, text) == std::end(kTypes)) {
      complain(it, fmt::format("expected NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED or "
                               "MEGATRON_LM, got {}",
                               describe(it.node)));
    } else if (text == "multicpu" || (which.name == "use_cpu" && flag(it) == true)) {
      put("device", it, scalar("cpu", it.node));
    } else if (which.name == "num_processes") {
      processes_ = count_in(it.node);
      if (processes_ == 0) {
        complain(it, fmt::format("expected a whole number >= 1, got {}", describe(it.node)));
        return;
      }
      tell(fmt::format("{}: {} is compared with the number of ranks", it.spelled, it.node.text));
    } else if (which.name == "fp16" && flag(it) == true) {
      put("mixed_precision", it, scalar("fp16", it.node));
    } else if (which.name == "distributed_type" && !find_in(kTypes, text)->second.empty()) {
      tell(fmt::format("{}: {}, so that {} counts", it.spelled, it.node.text,
                       find_in(kTypes, text)->second));
    } else {
      without_meaning(it);
    }
  });
}

void Pass::launch_sections() {
  const auto type = find_in(kTypes, distributed_);
  const std::string_view counts = type == std::end(kTypes) ? "" : type->second;
  bool found = false;
  for (size_t i = 0; accelerate_ && i < root_.items.size(); ++i) {
    const Entry entry = {root_.keys[i].text, root_.keys[i].text, root_.keys[i], root_.items[i]};
    const bool empty = entry.node.items.empty();
    if (!is_section_of_accelerate(entry.name)) {
      continue;
    }
    found = found || entry.name == counts;
    if (entry.name == "parallelism_config") {
      section(entry, kParallelism, "parallelism_config_", {});
    } else if (entry.name == "tp_config") {
      section(entry, {kTensorParallelPlugin}, "tp_", {});
    } else if (distributed_.empty() && !empty &&
               std::ranges::find(misspelled_, "distributed_type") == misspelled_.end()) {
      complain(entry, "counts only with distributed_type, which is missing");
    } else if (entry.name != counts) {
      without_meaning(entry);
    } else if (entry.name == "fsdp_config") {
      fsdp(entry);
    } else if (entry.name == "deepspeed_config") {
      deepspeed_plugin(entry);
    } else {
      megatron_plugin(entry);
    }
  }
  if (!counts.empty() && !found) {
    const YamlNode* node = value_of(root_, "distributed_type");
    const Entry entry = {"distributed_type",
                         "distributed_type",
                         {"distributed_type", node->line, node->column, {}},
                         *node};
    // FullyShardedDataParallelPlugin and DeepSpeedPlugin of accelerate/utils/dataclasses.py.
    put("parallelism.zero_stage", entry,
        scalar(counts == "fsdp_config"        ? "3"
               : counts == "deepspeed_config" ? "2"
                                              : "0",
               *node),
        " (Accelerate's default)");
  }
}

void Pass::fsdp(const Entry& section_entry) {
  section(section_entry, kFsdp, "fsdp_", [this](const ForeignKey& key, const Entry& entry) {
    if (key.name == "activation_checkpointing") {
      if (const auto value = flag(entry)) {
        put("model.recompute", entry, scalar(*value ? "block" : "none", entry.node));
      }
    }
  });
  if (section_entry.node.kind == Kind::map) {
    fsdp_stage(section_entry);
  }
}

/// Version 2 reads reshard_after_forward alone (true or false); version 1, the default, reads
/// sharding_strategy, or else a strategy under the other name, as its wizard writes since 1.6
/// (FullyShardedDataParallelPlugin of accelerate/utils/dataclasses.py).
void Pass::fsdp_stage(const Entry& section_entry) {
  const YamlNode& map = section_entry.node;
  const YamlNode* version = value_of(map, "fsdp_version");
  version = version == nullptr ? value_of(map, "version") : version;
  const bool second = version != nullptr && version->text == "2";
  const char* const names[] = {second ? "reshard_after_forward" : "sharding_strategy",
                               second ? "sharding_strategy" : "reshard_after_forward"};
  bool given = false;
  for (const char* name : names) {
    for (const std::string& key : {std::string("fsdp_") + name, std::string(name)}) {
      const YamlNode* value = value_of(map, key);
      if (value == nullptr || value->kind == Kind::null) {
        continue;
      }
      const Entry entry = {name, section_entry.spelled + "." + key,
                           map.keys[static_cast<size_t>(value - map.items.data())], *value};
      if (given || (second && name != names[0])) {
        without_meaning(entry);  // the other one decides
        continue;
      }
      given = true;
      const std::string text = simplified(value->text);
      if (const auto flag = parse_bool(value->text)) {
        put("parallelism.zero_stage", entry, scalar(*flag ? "3" : "2", *value));
        continue;
      }
      const auto found = find_in(kStrategies, text);
      if (found == std::end(kStrategies)) {
        complain(entry, fmt::format("expected FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
                                    "HYBRID_SHARD_ZERO2, true or false, got {}",
                                    describe(*value)));
        continue;
      }
      const bool hybrid = text.starts_with("hybrid") || text == "4" || text == "5";
      put("parallelism.zero_stage", entry, scalar(std::string(found->second), *value),
          hybrid ? " (over all ranks, and not within each node)" : "");
    }
  }
  if (!given) {
    put("parallelism.zero_stage", section_entry, scalar("3", map),
        " (Accelerate's default: all is sharded)");
  }
}

void Pass::deepspeed_plugin(const Entry& section_entry) {
  section(section_entry, kDeepspeedPlugin, "", [this](const ForeignKey& key, const Entry& entry) {
    if (key.name == "deepspeed_config_file") {
      if (!is_off(entry.node)) {
        tell(fmt::format("{}: {} is read too", entry.spelled, entry.node.text));
        included_ = entry.node;
        half_ = true;
      }
    } else if (is_off(entry.node)) {
      without_meaning(entry);  // "none": DeepSpeed's own default
    } else {
      put("optimizer.grad_clip", entry, entry.node);
    }
  });
  const YamlNode& map = section_entry.node;
  if (map.kind == Kind::map && !included_ && value_of(map, "zero_stage") == nullptr) {
    put("parallelism.zero_stage", section_entry, scalar("2", map), " (Accelerate's default)");
  }
}

void Pass::megatron_plugin(const Entry& section_entry) {
  section(section_entry, kMegatronPlugin, "megatron_lm_",
          [this](const ForeignKey& key, const Entry& entry) {
            const auto value = flag(entry);
            if (value && key.name == "recompute_activations") {
              put("model.recompute", entry, scalar(*value ? "block" : "none", entry.node),
                  *value ? " (Megatron recomputes attention alone)" : "");
            } else if (value) {
              put("parallelism.zero_stage", entry, scalar(*value ? "1" : "0", entry.node));
            }
          });
}

}  // namespace fp8train::dialects
