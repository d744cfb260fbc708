// A file of `accelerate config`: its fp8_config, how processes are started and how the work is laid
// over them (Accelerate, commands/config/config_args.py, commands/config/cluster.py and
// utils/dataclasses.py; files of its versions 0.4 to 1.13).

#include <fmt/format.h>

#include "base/nearest.h"
#include "base/text.h"
#include "config/dialects/accelerate_keys.h"
#include "config/dialects/pass.h"
#include "config/fields/field.h"
#include "config/fields/field_table.h"
#include "config/fields/scalar.h"

namespace fp8train::dialects {
namespace {

using namespace accelerate_keys;
using Kind = YamlNode::Kind;

bool is_section(std::string_view name) {
  return std::ranges::find(kSections, name) != std::end(kSections);
}

/// Whether Accelerate has the key.
bool is_launch_key(std::string_view name) {
  return is_section(name) || find_key(kLaunch, name) || name.starts_with("tpu_");
}

/// Names of keys at the top level: ours, and then those of Accelerate.
const std::vector<std::string>& names_at_top_level() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names = names_in_section("");
    for (const ForeignKey& key : kLaunchKeys) {
      names.emplace_back(key.names);
    }
    std::ranges::copy(split(kLaunch.without_meaning, ' '), std::back_inserter(names));
    names.insert(names.end(), std::begin(kSections), std::end(kSections));
    names.emplace_back("fp8_config");
    return names;
  }();
  return kNames;
}

/// The key of Accelerate that an unknown one at the top level may mean, or "".
std::string launch_key_near(const std::string& name) {
  const std::vector<std::string>& names = names_at_top_level();
  if (find_passive_key(name) != nullptr || std::ranges::find(names, name) != names.end()) {
    return "";
  }
  const std::string near = nearest_name(name, names);
  return near == "fp8_config" || is_launch_key(near) ? near : "";
}

class Accelerate : public Program {
 public:
  explicit Accelerate(Pass& pass)
      : Program(pass), is_here_(std::ranges::any_of(pass.root().keys, [](const YamlKey& key) {
          return key.text == "fp8_config" || key.text == "compute_environment" ||
                 key.text == "distributed_type" || is_section(key.text);
        })) {
    if (const YamlNode* type = value_of(pass.root(), "distributed_type")) {
      type_ = simplified(type->text);
    }
  }

  bool recognizes(const Entry& entry) const override {
    return is_here_ && (entry.name == "fp8_config" || is_launch_key(entry.name) ||
                        !launch_key_near(entry.name).empty());
  }

  void read(const Entry& entry) override {
    if (entry.name == "fp8_config") {
      fp8_config(entry);
    } else if (entry.name.starts_with("tpu_")) {
      pass_.without_meaning(entry);
    } else if (find_key(kLaunch, entry.name)) {
      pass_.key(entry, kLaunch, [this](const Entry& it) { processes(it); });
    } else if (!is_section(entry.name)) {
      misspelled_.push_back(launch_key_near(entry.name));
      pass_.complain(entry, fmt::format("unknown key; did you mean \"{}\"?", misspelled_.back()));
    }
  }

  /// The sections, of which the type decides which counts.
  void finish() override {
    const std::string counts = find_word(kSectionOfType, type_).value_or("");
    const YamlNode& root = pass_.root();
    for (size_t i = 0; is_here_ && i < root.items.size(); ++i) {
      if (is_section(root.keys[i].text)) {
        section({root.keys[i].text, root.keys[i].text, root.keys[i], root.items[i]}, counts);
      }
    }
    if (!counts.empty() && value_of(root, counts) == nullptr) {
      const YamlNode& type = *value_of(root, "distributed_type");
      const YamlKey key = {"distributed_type", type.line, type.column, {}};
      pass_.put("parallelism.zero_stage", {key.text, key.text, key, type},
                *find_word(kStageWithout, counts), " (Accelerate's default)");
    }
  }

 private:
  void fp8_config(const Entry& entry) {
    if (entry.node.kind == Kind::null) {
      pass_.tell("fp8_config is empty");
    }
    pass_.section(entry, {kFp8Keys, {}, false}, "fp8_",
                  [this](const Entry& it) { override_linear_precision(it); });
    // TERecipeKwargs of accelerate/utils/dataclasses.py: use_autocast_during_eval is False by
    // default. convert_model_to_fp8_ao of accelerate/utils/ao.py; the head is out in any case.
    pass_.state.defaults.push_back({pass_.given(entry), "te", "fp8.use_autocast_during_eval",
                                    "false", "Accelerate's default: evaluation in high precision"});
    pass_.state.defaults.push_back(
        {pass_.given(entry), "torchao", "fp8.first_linears", "1",
         "Accelerate leaves the first linear layer and the head in high precision"});
  }

  /// A list, "(a, b, c)" or "a,b,c" as one text, or false.
  void override_linear_precision(const Entry& entry) {
    constexpr const char* kKey = "fp8.override_linear_precision";
    if (entry.node.kind != Kind::scalar) {
      pass_.put(kKey, entry, entry.node);
    } else if (const auto flag = flag_in(entry.node); flag == true) {
      pass_.complain(entry,
                     "true does not say which GEMMs; write three, such as [false, false, true]");
    } else if (flag == false) {
      pass_.tell(fmt::format("{}: false: no GEMM stays in high precision", entry.spelled));
    } else {
      std::string text = entry.node.text;
      std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == ' '; });
      const YamlNode list = value("[" + text + "]", entry.node);
      const auto is_flag = [](const YamlNode& one) { return parse_bool(one.text).has_value(); };
      if (list.items.size() != 3 || !std::ranges::all_of(list.items, is_flag)) {
        pass_.complain(
            entry, fmt::format("expected three of true or false, got {}", describe(entry.node)));
      } else {
        pass_.put(kKey, entry, lower(text_of(list)));
      }
    }
  }

  void processes(const Entry& entry) {
    pass_.state.processes = count_in(entry.node);
    if (pass_.state.processes == 0) {
      pass_.complain(entry,
                     fmt::format("expected a whole number >= 1, got {}", describe(entry.node)));
      return;
    }
    pass_.tell(
        fmt::format("{}: {} is compared with the number of ranks", entry.spelled, entry.node.text));
  }

  /// The axis that shares sequences: cp_size gathers keys and values, sp_size swaps heads
  /// (DeepSpeed Ulysses). ParallelismConfig of Accelerate refuses both.
  void context(const Entry& section) {
    std::optional<Entry> given;
    pass_.section(section, kParallelism, "parallelism_config_", [&](const Entry& entry) {
      if (count_in(entry.node) == 1) {
        pass_.without_meaning(entry);
      } else if (given) {
        pass_.complain(entry, fmt::format("{} shares the sequences already, as in Accelerate; "
                                          "remove one of them",
                                          given->spelled));
      } else {
        given = entry;
        pass_.put("parallelism.context", entry, entry.node);
      }
    });
    if (given && pass_.value_for("parallelism.context_kind") == nullptr) {
      pass_.put("parallelism.context_kind", *given, given->name == "cp_size" ? "gather" : "heads");
    }
  }

  /// `counts`: the section that counts with the type.
  void section(const Entry& entry, const std::string& counts) {
    if (entry.name == "parallelism_config") {
      context(entry);
    } else if (entry.name == "tp_config") {
      pass_.section(entry, {kTensorParallelKeys}, "tp_");
    } else if (type_.empty() && !entry.node.items.empty() &&
               std::ranges::find(misspelled_, "distributed_type") == misspelled_.end()) {
      pass_.complain(entry, "counts only with distributed_type, which is missing");
    } else if (entry.name != counts) {
      pass_.without_meaning(entry);
    } else if (entry.name == "fsdp_config") {
      pass_.section(entry, kFsdp, "fsdp_", [](const Entry&) {});  // by fsdp_stage()
      fsdp_stage(entry);
    } else if (entry.name == "deepspeed_config") {
      deepspeed(entry);
    } else {
      pass_.section(entry, {kMegatronKeys, "sequence_parallelism"}, "megatron_lm_");
    }
  }

  /// Version 2 reads reshard_after_forward alone (true or false); version 1, the default, reads
  /// sharding_strategy, or else a strategy under the other name, as its wizard writes since 1.6
  /// (FullyShardedDataParallelPlugin of accelerate/utils/dataclasses.py).
  void fsdp_stage(const Entry& section) {
    const YamlNode& map = section.node;
    if (map.kind != Kind::map) {
      return;
    }
    const YamlNode* version = value_of(map, "fsdp_version");
    version = version == nullptr ? value_of(map, "version") : version;
    const bool second = version != nullptr && version->text == "2";
    const std::string names[] = {second ? "reshard_after_forward" : "sharding_strategy",
                                 second ? "sharding_strategy" : "reshard_after_forward"};
    bool given = false;
    for (const std::string& key : {"fsdp_" + names[0], names[0], "fsdp_" + names[1], names[1]}) {
      const YamlNode* node = value_of(map, key);
      if (node == nullptr || node->kind == Kind::null) {
        continue;
      }
      const Entry entry = {key, section.spelled + "." + key,
                           map.keys[static_cast<size_t>(node - map.items.data())], *node};
      if (given || (second && key.ends_with("sharding_strategy"))) {
        pass_.without_meaning(entry);  // the other one decides
        continue;
      }
      given = true;
      const std::string text = simplified(node->text);
      const bool hybrid = text.starts_with("hybrid") || text == "4" || text == "5";
      if (const auto stage = find_word(kStrategies, text)) {
        pass_.put("parallelism.zero_stage", entry, *stage);
        if (hybrid) {
          pass_.put("parallelism.shard_ranks", entry, "node");
        }
      } else {
        pass_.complain(entry, fmt::format("expected FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, "
                                          "HYBRID_SHARD, HYBRID_SHARD_ZERO2, true or false, got {}",
                                          describe(*node)));
      }
    }
    if (!given) {
      pass_.put("parallelism.zero_stage", section, value("3", map),
                " (Accelerate's default: all is sharded)");
    }
  }

  void deepspeed(const Entry& section) {
    pass_.section(section, kDeepspeed, "", [this](const Entry& entry) {
      if (is_off(entry.node) && entry.name == "gradient_clipping") {
        pass_.without_meaning(entry);  // "none": DeepSpeed's own default
      } else if (entry.name == "gradient_clipping") {
        pass_.put("optimizer.grad_clip", entry, entry.node);
      } else if (!is_off(entry.node)) {
        pass_.tell(fmt::format("{}: {} is read too", entry.spelled, entry.node.text));
        pass_.state.included = {entry.node.text, pass_.mark_of(entry.node)};
      }
    });
    const YamlNode& map = section.node;
    if (map.kind == Kind::map && !pass_.state.included && value_of(map, "zero_stage") == nullptr) {
      pass_.put("parallelism.zero_stage", section, value("2", map), " (Accelerate's default)");
    }
  }

  bool is_here_;                         // the source is a file of Accelerate
  std::string type_;                     // distributed_type, simplified
  std::vector<std::string> misspelled_;  // keys that others were meant to be
};

}  // namespace

std::unique_ptr<Program> accelerate(Pass& pass) {
  return std::make_unique<Accelerate>(pass);
}

}  // namespace fp8train::dialects
