// Megatron's names.

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/fields/field.h"
#include "dialects/pass.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;

constexpr const char* kNoFp8Attention = "the products of attention are not in FP8 here";

/// These keys are at the top level or in `fp8` (Megatron-LM, megatron/training/arguments.py and
/// megatron/core/transformer/transformer_config.py).
constexpr ForeignKey kMegatronKeys[] = {
    {"fp8_format", Meaning::ours, "fp8.format"},
    {"fp8_recipe", Meaning::special, "fp8.recipe"},
    {"fp8_margin", Meaning::ours, "fp8.margin"},
    {"fp8_interval", Meaning::ours, "fp8.interval"},
    {"fp8_amax_history_len", Meaning::ours, "fp8.amax_history_len"},
    {"fp8_amax_compute_algo", Meaning::ours, "fp8.amax_compute_algo"},
    {"tp_only_amax_red", Meaning::special, "fp8.reduce_amax"},
    {"fp8_output_proj", Meaning::special, "fp8.exempt_head"},
    {"fp8_wgrad", Meaning::special, "fp8.override_linear_precision"},
    {"fp8_param_gather", Meaning::special},
    {"fp8_param", Meaning::special},
    {"fp8_dot_product_attention", Meaning::off, kNoFp8Attention},
    {"fp8_multi_head_attention", Meaning::off, kNoFp8Attention},
    {"fp8_quantizer_factory", Meaning::off, "a class of Python is not run here; choose fp8.recipe"},
    {"te_precision_config_file", Meaning::ours, "precision.file"},
    {"first_last_layers_bf16", Meaning::special},
    {"num_layers_at_start_in_bf16", Meaning::special, "fp8.first_blocks"},
    {"num_layers_at_end_in_bf16", Meaning::special, "fp8.last_blocks"}};

constexpr ForeignTable kMegatron = {kMegatronKeys, {}, false};

constexpr Words kMegatronRecipes[] = {{"delayed", "delayed"},
                                      {"tensorwise", "current"},
                                      {"blockwise", "blockwise"},
                                      {"mxfp8", "mxfp8"}};

}  // namespace

bool Pass::is_megatron_key(std::string_view name) {
  return name.starts_with("fp8_") || find_key(kMegatron, name);
}

bool Pass::is_megatron(const Entry& entry) const {
  return is_megatron_key(entry.name) || (entry.name == "fp8" && entry.node.kind == Kind::scalar);
}

/// `fp8: hybrid`, as TransformerConfig and NeMo have it.
void Pass::megatron_format(const Entry& entry) {
  const std::string text = simplified(entry.node.text);
  if (text == "hybrid" || text == "e4m3") {
    put("fp8.format", entry, entry.node);
    implied_key_ = entry.key;
  } else if (is_off(entry.node)) {
    without_meaning(entry);
  } else {
    complain(entry, fmt::format("expected hybrid or e4m3, as in Megatron, or a section of keys, "
                                "got {}; mixed_precision: fp8 switches FP8 on",
                                describe(entry.node)));
  }
}

void Pass::read_megatron(const Entry& entry) {
  if (entry.name == "fp8") {
    megatron_format(entry);
    return;
  }
  megatron(entry);
  if (entry.name == "fp8_format" && entry.node.kind != Kind::null) {
    implied_key_ = entry.key;
  }
}

void Pass::megatron(const Entry& entry) {
  if (const auto known = find_key(kMegatron, entry.name)) {
    foreign(
        *known, entry, [this](const ForeignKey& key, const Entry& it) { megatron_key(key, it); },
        kMegatron.takes_auto);
  } else {
    unknown(entry, kMegatron);
  }
}

void Pass::megatron_key(const ForeignKey& key, const Entry& entry) {
  if (key.name == "fp8_recipe") {
    const auto found = find_in(kMegatronRecipes, entry.node.text);
    if (found == std::end(kMegatronRecipes)) {
      complain(entry, fmt::format("expected delayed, tensorwise, blockwise or mxfp8, got {}",
                                  describe(entry.node)));
    } else {
      put(key.text, entry, scalar(std::string(found->second), entry.node));
    }
  } else if (key.name == "fp8_wgrad") {
    if (const auto value = flag(entry); value == false) {
      put(key.text, entry, flags({false, false, true}, entry.node));
    } else if (value == true) {
      tell(fmt::format("{}: true is so without it", entry.spelled));
    }
  } else if (key.name == "tp_only_amax_red" || key.name == "fp8_output_proj") {
    // Without tensor parallelism the group that agrees on an amax is the rank itself.
    if (const auto value = flag(entry)) {
      put(key.text, entry, scalar(*value ? "false" : "true", entry.node));
    }
  } else if (key.name == "fp8_param_gather" || key.name == "fp8_param") {
    if (flag(entry)) {
      tell(fmt::format(
          "{}: with ZeRO, weights are gathered in FP8 wherever GEMMs read one set of codes; "
          "FP8 primary weights: precision.weight: e4m3, precision.master_weight: fp32",
          entry.spelled));
    }
  } else if (key.name == "first_last_layers_bf16") {
    if (const auto value = flag(entry)) {
      changed_ = true;
      blocks_ = entry;
      keeps_blocks_ = *value;
    }
  } else {  // num_layers_at_..._in_bf16
    changed_ = true;
    counts_.emplace_back(key.text, entry);
  }
}

/// first_last_layers_bf16 and its two counts, which are 1 where they are not given.
void Pass::finish_blocks() {
  for (const auto& [key, entry] : counts_) {
    if (keeps_blocks_) {
      put(key, entry, entry.node);
    } else {
      complain(entry, "counts only with first_last_layers_bf16: true; remove it or say so");
    }
  }
  if (!blocks_) {
    return;
  }
  const Entry& entry = *blocks_;
  if (!keeps_blocks_) {
    tell(fmt::format("{}: false is so without it", entry.spelled));
    return;
  }
  for (const char* key : {"fp8.first_blocks", "fp8.last_blocks"}) {
    const bool given = std::any_of(counts_.begin(), counts_.end(),
                                   [&](const auto& count) { return count.first == key; });
    if (!given) {
      put(key, entry, scalar("1", entry.node));
    }
  }
}

/// Megatron's own defaults are others than those of the plans.
void Pass::tell_defaults() {
  const bool decided = std::any_of(pending_.begin(), pending_.end(), [](const Pending& pending) {
    return pending.key == "fp8.amax_history_len" ||
           (pending.key == "fp8.recipe" && pending.entry.node.text != "delayed");
  });
  if (implied_key_ && !decided) {
    notes_.emplace_back(
        "fp8_amax_history_len is not given: with delayed scaling the plan's own history counts, "
        "1024 steps and max (Megatron's defaults are 1 and most_recent)");
  }
}

}  // namespace fp8train::dialects
