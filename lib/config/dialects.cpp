#include "config/dialects.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/nearest.h"
#include "config/field.h"
#include "config/scalar.h"

namespace fp8train {
namespace {

using Kind = YamlNode::Kind;

/// A foreign key and the one of ours that means the same.
struct Alias {
  std::string_view name;
  std::string_view key;
  bool ignored_at_home = false;  ///< Accelerate writes it and never reads it
};

/// Of Accelerate's fp8_config, without the optional prefix fp8_ (research/accelerate-deepspeed.md
/// 1.6 and 1.10).
constexpr Alias kAccelerate[] = {{"backend", "fp8.backend"},
                                 {"format", "fp8.format"},
                                 {"margin", "fp8.margin"},
                                 {"interval", "fp8.interval"},
                                 {"amax_history_len", "fp8.amax_history_len"},
                                 {"amax_history_length", "fp8.amax_history_len", true},
                                 {"amax_compute_algo", "fp8.amax_compute_algo"},
                                 {"amax_compute_algorithm", "fp8.amax_compute_algo", true},
                                 {"override_linear_precision", "fp8.override_linear_precision"},
                                 {"use_autocast_during_eval", "fp8.use_autocast_during_eval"},
                                 {"use_mxfp8_block_scaling", "fp8.recipe"},
                                 {"opt_level", "fp8.opt_level"},
                                 {"optimization_level", "fp8.opt_level", true},
                                 {"enable_fsdp_float8_all_gather", ""},
                                 {"pad_inner_dim", ""}};

/// Of Megatron, at the top level or in `fp8` (research/te-megatron.md 3.1).
constexpr Alias kMegatron[] = {{"fp8_format", "fp8.format"},
                               {"fp8_recipe", "fp8.recipe"},
                               {"fp8_margin", "fp8.margin"},
                               {"fp8_interval", "fp8.interval"},
                               {"fp8_amax_history_len", "fp8.amax_history_len"},
                               {"fp8_amax_compute_algo", "fp8.amax_compute_algo"},
                               {"fp8_wgrad", "fp8.override_linear_precision"},
                               {"fp8_param_gather", ""},
                               {"first_last_layers_bf16", ""},
                               {"num_layers_at_start_in_bf16", "fp8.first_blocks"},
                               {"num_layers_at_end_in_bf16", "fp8.last_blocks"}};

constexpr std::pair<std::string_view, std::string_view> kMegatronRecipes[] = {
    {"delayed", "delayed"},
    {"tensorwise", "current"},
    {"blockwise", "blockwise"},
    {"mxfp8", "mxfp8"}};

constexpr std::pair<std::string_view, std::string_view> kBackends[] = {{"te", "te"},
                                                                       {"transformerengine", "te"},
                                                                       {"msamp", "msamp"},
                                                                       {"ao", "torchao"},
                                                                       {"torchao", "torchao"}};

/// What an `accelerate config` file says beside fp8_config, and what decides here instead.
constexpr std::pair<std::string_view, std::string_view> kBeside[] = {
    {"compute_environment", ""},
    {"distributed_type", ""},
    {"num_machines", "Slurm or MPI decides"},
    {"num_processes", "Slurm or MPI decides"},
    {"machine_rank", "Slurm or MPI decides"},
    {"main_process_ip", "Slurm or MPI decides"},
    {"main_process_port", "Slurm or MPI decides"},
    {"rdzv_backend", ""},
    {"same_network", ""},
    {"use_cpu", "`device` decides"},
    {"downcast_bf16", ""},
    {"main_training_function", ""},
    {"debug", ""},
    {"enable_cpu_affinity", ""},
    {"gpu_ids", "Slurm or CUDA_VISIBLE_DEVICES decides"}};

template <class Table>
auto find_in(const Table& table, std::string_view name) {
  return std::find_if(std::begin(table), std::end(table),
                      [&](const auto& entry) { return entry.first == name; });
}

const Alias* find_alias(const Alias* begin, const Alias* end, std::string_view name) {
  const Alias* found =
      std::find_if(begin, end, [&](const Alias& alias) { return alias.name == name; });
  return found == end ? nullptr : found;
}

bool is_megatron(std::string_view name) {
  return find_alias(std::begin(kMegatron), std::end(kMegatron), name) != nullptr;
}

std::vector<std::string> names_of(const Alias* begin, const Alias* end) {
  std::vector<std::string> names;
  std::transform(begin, end, std::back_inserter(names),
                 [](const Alias& alias) { return std::string(alias.name); });
  return names;
}

/// A value on one line, for messages and comparison.
std::string text_of(const YamlNode& node) {
  if (node.kind != Kind::sequence) {
    return node.kind == Kind::map ? "a section" : node.text;
  }
  std::string text;
  for (const YamlNode& item : node.items) {
    text += (text.empty() ? "" : ", ") + text_of(item);
  }
  return "[" + text + "]";
}

YamlNode scalar(std::string text, const YamlNode& place) {
  YamlNode node;
  node.kind = Kind::scalar;
  node.text = std::move(text);
  node.line = place.line;
  node.column = place.column;
  return node;
}

YamlNode flags(const std::array<bool, 3>& values, const YamlNode& place) {
  YamlNode node = scalar("", place);
  node.kind = Kind::sequence;
  for (const bool value : values) {
    node.items.push_back(scalar(value ? "true" : "false", place));
  }
  return node;
}

std::optional<bool> flag_in(const YamlNode& node) {
  return node.kind == Kind::scalar && !node.quoted ? parse_bool(node.text) : std::nullopt;
}

/// One source's tree on its way.
class Translation {
 public:
  Translation(YamlNode& root, size_t source, Problems& problems, std::vector<std::string>& told)
      : root_(root), source_(source), problems_(problems), told_(told) {}

  bool run() {
    const bool beside_accelerate = has(root_, "fp8_config");
    YamlNode kept = without_items(root_);
    for (size_t i = 0; i < root_.items.size(); ++i) {
      const Entry entry = {root_.keys[i].text, root_.keys[i].text, root_.keys[i], root_.items[i]};
      if (entry.name == "fp8_config") {
        accelerate(entry);
      } else if (beside_accelerate && is_beside(entry.name)) {
        tell_beside(entry);
      } else if (is_megatron(entry.name) || entry.name.starts_with("fp8_")) {
        megatron(entry);
        switches_on_ = switches_on_ || entry.name == "fp8_format";
      } else if (entry.name == "fp8" && entry.node.kind == Kind::map) {
        keep(kept, entry.place, own_section(entry.node));
      } else {
        keep(kept, entry.place, entry.node);
        continue;
      }
      first_ = changed_ && first_.line == 0 ? entry.place : first_;
    }
    finish_blocks();
    if (changed_) {
      root_ = std::move(kept);
      insert_pending();
      tell_defaults();
    }
    return changed_;
  }

  /// fp8.enabled as it was written; null when it was not.
  const YamlNode* enabled() const { return has_enabled_ ? &enabled_ : nullptr; }
  const YamlKey& enabled_key() const { return enabled_key_; }
  /// A key that means "train in FP8" without saying it.
  bool switches_on() const { return switches_on_; }
  const YamlKey& first_key() const { return first_; }

 private:
  struct Entry {
    std::string name;     ///< within its section
    std::string spelled;  ///< dotted, as written
    YamlKey place;
    YamlNode node;
  };
  struct Pending {
    std::string key;  ///< ours, dotted
    Entry entry;      ///< with the value in our spelling
  };

  static bool has(const YamlNode& map, std::string_view name) {
    return std::any_of(map.keys.begin(), map.keys.end(),
                       [&](const YamlKey& key) { return key.text == name; });
  }

  static YamlNode without_items(const YamlNode& node) {
    YamlNode copy = node;
    copy.keys.clear();
    copy.items.clear();
    return copy;
  }

  static void keep(YamlNode& map, const YamlKey& key, YamlNode node) {
    map.keys.push_back(key);
    map.items.push_back(std::move(node));
  }

  static bool is_beside(std::string_view name) {
    return find_in(kBeside, name) != std::end(kBeside) || name.starts_with("tpu_");
  }

  void tell(std::string line) {
    changed_ = true;
    told_.push_back(std::move(line));
  }

  void complain(const Entry& entry, const std::string& text) {
    changed_ = true;
    problems_.add({source_, entry.place.line, entry.place.column}, entry.spelled, text);
  }

  void tell_beside(const Entry& entry) {
    const auto found = find_in(kBeside, entry.name);
    const std::string_view instead = found == std::end(kBeside) ? "" : found->second;
    tell(fmt::format("{} has no meaning here{}{}", entry.spelled, instead.empty() ? "" : ": ",
                     instead));
  }

  /// The value under our key.
  void put(std::string_view key, const Entry& entry, YamlNode value, const char* remark = "") {
    const std::string before = text_of(entry.node);
    const std::string after = text_of(value);
    tell(before == after
             ? fmt::format("{} read as {}{}", entry.spelled, key, remark)
             : fmt::format("{}: {} read as {}: {}{}", entry.spelled, before, key, after, remark));
    Entry ours = entry;
    ours.node = std::move(value);
    pending_.push_back({std::string(key), std::move(ours)});
  }

  /// True, false, or neither with a problem.
  std::optional<bool> flag(const Entry& entry) {
    const std::optional<bool> value = flag_in(entry.node);
    if (!value && !entry.node.reported) {
      complain(entry, fmt::format("expected true or false, got {}", describe(entry.node)));
    }
    return value;
  }

  void accelerate(const Entry& section) {
    changed_ = true;
    if (section.node.kind != Kind::map) {
      if (section.node.kind != Kind::null) {
        complain(section,
                 fmt::format("expected a section of keys, got {}", describe(section.node)));
      }
      return;
    }
    for (size_t i = 0; i < section.node.items.size(); ++i) {
      const YamlKey& key = section.node.keys[i];
      const std::string name = key.text.starts_with("fp8_") ? key.text.substr(4) : key.text;
      const Entry entry = {name, "fp8_config." + key.text, key, section.node.items[i]};
      const Alias* alias = find_alias(std::begin(kAccelerate), std::end(kAccelerate), name);
      if (alias == nullptr) {
        unknown(entry, names_of(std::begin(kAccelerate), std::end(kAccelerate)));
      } else if (entry.node.kind == Kind::null) {
        tell(fmt::format("{} is not set", entry.spelled));
      } else {
        accelerate_key(*alias, entry);
      }
    }
  }

  void unknown(const Entry& entry, const std::vector<std::string>& known) {
    const std::string near = nearest_name(entry.name, known);
    complain(entry, near.empty() ? "unknown key; there are: " + joined(known)
                                 : fmt::format("unknown key; did you mean \"{}\"?", near));
  }

  void accelerate_key(const Alias& alias, const Entry& entry) {
    if (alias.name == "backend") {
      const auto found = find_in(kBackends, simplified(entry.node.text));
      put(alias.key, entry,
          found == std::end(kBackends) ? entry.node
                                       : scalar(std::string(found->second), entry.node));
    } else if (alias.name == "format" && simplified(entry.node.text) == "e5m2") {
      complain(entry,
               "E5M2 for all tensors does not train (TransformerEngine refuses it too); choose "
               "HYBRID or E4M3");
    } else if (alias.name == "override_linear_precision") {
      override_linear_precision(alias, entry);
    } else if (alias.name == "use_mxfp8_block_scaling") {
      if (const auto value = flag(entry); value == true) {
        put(alias.key, entry, scalar("mxfp8", entry.node));
      } else if (value == false) {
        tell(fmt::format("{}: false is so without it", entry.spelled));
      }
    } else if (alias.name == "enable_fsdp_float8_all_gather") {
      if (flag(entry)) {
        tell(fmt::format("{}: weights are gathered in FP8 where the plan's weight is FP8",
                         entry.spelled));
      }
    } else if (alias.name == "pad_inner_dim") {
      if (flag(entry)) {
        tell(
            fmt::format("{}: nothing is padded; layers with a dimension that is no multiple of 16 "
                        "stay in high precision, and `fp8train explain` lists them",
                        entry.spelled));
      }
    } else {
      put(alias.key, entry, entry.node,
          alias.ignored_at_home ? " (Accelerate itself ignores this spelling)" : "");
    }
  }

  /// A list, "(a, b, c)" or "a,b,c" as one text, or false.
  void override_linear_precision(const Alias& alias, const Entry& entry) {
    if (entry.node.kind != Kind::scalar) {
      put(alias.key, entry, entry.node);
      return;
    }
    if (const auto value = flag_in(entry.node)) {
      if (*value) {
        complain(entry, "true does not say which GEMMs; write three, such as [false, false, true]");
      } else {
        tell(fmt::format("{}: false: no GEMM is kept in high precision", entry.spelled));
      }
      return;
    }
    std::vector<bool> values;
    std::string rest = entry.node.text;
    rest.erase(std::remove_if(rest.begin(), rest.end(),
                              [](char c) { return c == '(' || c == ')' || c == ' '; }),
               rest.end());
    for (size_t begin = 0; begin <= rest.size();) {
      const size_t end = std::min(rest.find(',', begin), rest.size());
      if (const auto value = parse_bool(rest.substr(begin, end - begin))) {
        values.push_back(*value);
      } else {
        values.clear();
        break;
      }
      begin = end + 1;
    }
    if (values.size() != 3) {
      complain(entry, fmt::format("expected three of true or false, got {}", describe(entry.node)));
      return;
    }
    put(alias.key, entry, flags({values[0], values[1], values[2]}, entry.node));
  }

  /// `fp8` with DeepSpeed's switch and Megatron's names taken out.
  YamlNode own_section(const YamlNode& section) {
    YamlNode kept = without_items(section);
    for (size_t i = 0; i < section.items.size(); ++i) {
      const YamlKey& key = section.keys[i];
      const Entry entry = {key.text, "fp8." + key.text, key, section.items[i]};
      if (key.text == "enabled") {
        changed_ = true;
        if (flag(entry)) {
          has_enabled_ = true;
          enabled_ = entry.node;
          enabled_key_ = key;
        }
      } else if (is_megatron(key.text) || key.text.starts_with("fp8_")) {
        megatron(entry);
      } else {
        keep(kept, key, entry.node);
      }
    }
    return kept;
  }

  void megatron(const Entry& entry) {
    const Alias* alias = find_alias(std::begin(kMegatron), std::end(kMegatron), entry.name);
    if (alias == nullptr) {
      unknown(entry, names_of(std::begin(kMegatron), std::end(kMegatron)));
    } else if (entry.node.kind == Kind::null) {
      tell(fmt::format("{} is not set", entry.spelled));
    } else if (alias->name == "fp8_recipe") {
      const auto found = find_in(kMegatronRecipes, entry.node.text);
      if (found == std::end(kMegatronRecipes)) {
        complain(entry, fmt::format("expected delayed, tensorwise, blockwise or mxfp8, got {}",
                                    describe(entry.node)));
      } else {
        put(alias->key, entry, scalar(std::string(found->second), entry.node));
      }
    } else if (alias->name == "fp8_wgrad") {
      if (const auto value = flag(entry); value == false) {
        put(alias->key, entry, flags({false, false, true}, entry.node));
      } else if (value == true) {
        tell(fmt::format("{}: true is so without it", entry.spelled));
      }
    } else if (alias->name == "fp8_param_gather") {
      if (flag(entry)) {
        tell(fmt::format("{}: weights are gathered in FP8 where the plan's weight is FP8",
                         entry.spelled));
      }
    } else if (alias->name == "first_last_layers_bf16") {
      if (const auto value = flag(entry)) {
        changed_ = true;
        blocks_ = {entry};
        keeps_blocks_ = *value;
      }
    } else if (alias->key == "fp8.first_blocks" || alias->key == "fp8.last_blocks") {
      changed_ = true;
      counts_.emplace_back(alias, entry);
    } else {
      put(alias->key, entry, entry.node);
      gives_history_ = gives_history_ || alias->key == "fp8.amax_history_len";
    }
  }

  /// first_last_layers_bf16 and its two counts, which are 1 where they are not given.
  void finish_blocks() {
    for (const auto& [alias, entry] : counts_) {
      if (keeps_blocks_) {
        put(alias->key, entry, entry.node);
      } else {
        complain(entry, "counts only with first_last_layers_bf16: true; remove it or say so");
      }
    }
    if (blocks_.empty()) {
      return;
    }
    const Entry& entry = blocks_.front();
    if (!keeps_blocks_) {
      tell(fmt::format("{}: false is so without it", entry.spelled));
      return;
    }
    for (const char* key : {"fp8.first_blocks", "fp8.last_blocks"}) {
      const bool given = std::any_of(counts_.begin(), counts_.end(),
                                     [&](const auto& count) { return count.first->key == key; });
      if (!given) {
        put(key, entry, scalar("1", entry.node));
      }
    }
  }

  /// Megatron's own defaults are others than those of the rows.
  void tell_defaults() {
    if (switches_on_ && !gives_history_) {
      told_.emplace_back(
          "fp8_amax_history_len is not given: with delayed scaling the row's own history counts, "
          "1024 steps and max (Megatron's defaults are 1 and most_recent)");
    }
  }

  void insert_pending() {
    for (const Pending& pending : pending_) {
      const size_t dot = pending.key.find('.');
      YamlNode& section = section_for(pending.key.substr(0, dot), pending.entry.place);
      const std::string name = pending.key.substr(dot + 1);
      const auto found = std::find_if(section.keys.begin(), section.keys.end(),
                                      [&](const YamlKey& key) { return key.text == name; });
      if (found == section.keys.end()) {
        YamlKey key = pending.entry.place;
        key.text = name;
        key.spelled = pending.entry.spelled;
        keep(section, key, pending.entry.node);
        continue;
      }
      const YamlNode& other = section.items[static_cast<size_t>(found - section.keys.begin())];
      if (simplified(text_of(other)) != simplified(text_of(pending.entry.node))) {
        complain(pending.entry, fmt::format("says {}, but {} at {} says {}; keep one of them",
                                            text_of(pending.entry.node),
                                            found->spelled.empty() ? pending.key : found->spelled,
                                            problems_.where({source_, found->line, found->column}),
                                            text_of(other)));
      }
    }
  }

  YamlNode& section_for(const std::string& name, const YamlKey& place) {
    auto found = std::find_if(root_.keys.begin(), root_.keys.end(),
                              [&](const YamlKey& key) { return key.text == name; });
    if (found == root_.keys.end()) {
      YamlKey key = place;
      key.text = name;
      keep(root_, key, scalar("", YamlNode{}));
      found = root_.keys.end() - 1;
      root_.items.back().kind = Kind::map;
    }
    YamlNode& section = root_.items[static_cast<size_t>(found - root_.keys.begin())];
    section.kind = section.kind == Kind::null ? Kind::map : section.kind;
    return section;
  }

  YamlNode& root_;
  size_t source_;
  Problems& problems_;
  std::vector<std::string>& told_;
  bool changed_ = false;
  YamlKey first_;
  std::vector<Pending> pending_;
  std::vector<std::pair<const Alias*, Entry>> counts_;
  std::vector<Entry> blocks_;  // at most one
  bool keeps_blocks_ = false;
  bool has_enabled_ = false;
  YamlNode enabled_;
  YamlKey enabled_key_;
  bool switches_on_ = false;
  bool gives_history_ = false;
};

}  // namespace

bool Dialects::translate(YamlNode& root, size_t source, int layer) {
  if (root.kind != Kind::map) {
    return false;
  }
  Translation translation(root, source, problems_, told_);
  const bool changed = translation.run();
  if (const YamlNode* enabled = translation.enabled()) {
    const YamlKey& key = translation.enabled_key();
    switch_ = {
        flag_in(*enabled).value_or(true), "fp8.enabled", {source, key.line, key.column}, layer};
  } else if (translation.switches_on()) {
    const YamlKey& key = translation.first_key();
    switch_ = {true, "fp8_format", {source, key.line, key.column}, layer};
  }
  return changed;
}

void Dialects::finish(GivenKeys& given) {
  if (!switch_) {
    return;
  }
  const GivenKey* precision = given.find("mixed_precision");
  const GivenKey* plan = given.find("precision.plan");
  const bool fp8 = precision != nullptr && simplified(precision->node.text) == "fp8";
  const auto complain = [&](const GivenKey& other) {
    problems_.add(switch_->place, switch_->spelled,
                  fmt::format("{} stands beside {}: {} at {}; keep one of them",
                              switch_->on ? "switches FP8 on and" : "false", other.spelled,
                              text_of(other.node), problems_.where(other.place)));
  };
  if (!switch_->on) {
    if (fp8 || plan != nullptr) {
      complain(fp8 ? *precision : *plan);
    } else {
      told_.push_back(switch_->spelled + ": false read as: mixed_precision is not fp8");
    }
  } else if (plan != nullptr) {
    told_.push_back(switch_->spelled + " changes nothing: precision.plan names the row");
  } else if (precision == nullptr) {
    given.add("mixed_precision", scalar("fp8", YamlNode{}), switch_->place, switch_->layer,
              switch_->spelled);
    told_.push_back(switch_->spelled + " read as mixed_precision: fp8");
  } else if (!fp8) {
    complain(*precision);
  } else {
    told_.push_back(switch_->spelled + " says what mixed_precision: fp8 says");
  }
}

}  // namespace fp8train
