// Megatron's names, at the top level or in `fp8` (Megatron-LM, megatron/training/arguments.py and
// megatron/core/transformer/transformer_config.py).

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/dialects/pass.h"
#include "config/fields/field.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;
using Fate = ForeignValue::Fate;

constexpr ForeignValue kRecipes[] = {{"delayed", Fate::ours, "delayed"},
                                     {"tensorwise", Fate::ours, "current"},
                                     {"blockwise", Fate::ours, "blockwise"},
                                     {"mxfp8", Fate::ours, "mxfp8"}};
/// Without tensor parallelism the group that agrees on an amax is the rank itself.
constexpr ForeignValue kInverted[] = {{"true", Fate::ours, "false"}, {"false", Fate::ours, "true"}};
constexpr ForeignValue kWgrad[] = {{"true", Fate::noted, "true is so without it"},
                                   {"false", Fate::ours, "[false, false, true]"}};
constexpr const char* kCodesGathered =
    "with ZeRO, weights are gathered in FP8 wherever GEMMs read one set of codes; FP8 primary "
    "weights: precision.weight: e4m3, precision.master_weight: fp32";
constexpr ForeignValue kGather[] = {{"true", Fate::noted, kCodesGathered},
                                    {"false", Fate::noted, kCodesGathered}};

constexpr const char* kNotRing =
    " (keys and values are gathered at once here, and do not go around a ring)";
constexpr ForeignValue kContext[] = {{"a2a", Fate::ours, "heads"},
                                     {"allgather", Fate::ours, "gather"},
                                     {"p2p", Fate::ours, "gather", kNotRing}};
constexpr const char* kPadded =
    "experts always have rows for their capacity, in a multiple that "
    "FP8 takes";
constexpr ForeignValue kExpertPadding[] = {{"true", Fate::noted, kPadded},
                                           {"false", Fate::noted, kPadded}};
constexpr ForeignValue kRouter[] = {{"*", Fate::noted, "routers always compute in fp32"}};
constexpr ForeignValue kDrops[] = {
    {"*", Fate::noted, "an expert without memory drops the tokens that come last (position)"}};
constexpr const char* kBalance = "moe.balance_loss is the weight of a loss by sequences";
constexpr ForeignValue kBalancing[] = {{"auxloss", Fate::noted, kBalance},
                                       {"seqauxloss", Fate::noted, kBalance},
                                       {"none", Fate::noted, "moe_aux_loss_coeff has no effect"}};
constexpr ForeignValue kGranularity[] = {
    {"full", Fate::ours, "block"},
    {"selective", Fate::ours, "attention", " (Megatron stores q, k and v)"}};

constexpr ForeignValue kWholeExperts[] = {
    {"1", Fate::ignored}, {"*", Fate::refused, "the weights of an expert are not divided"}};

constexpr ForeignKey kKeys[] = {
    {"num_experts num_moe_experts", Meaning::ours, "model.num_experts"},
    {"moe_router_topk", Meaning::ours, "model.num_experts_per_tok"},
    {"moe_ffn_hidden_size", Meaning::ours, "model.moe_intermediate_size"},
    {"moe_shared_expert_intermediate_size", Meaning::ours, "model.shared_expert_intermediate_size"},
    {"moe_router_score_function", Meaning::ours, "model.scoring_func"},
    {"moe_router_pre_softmax", Meaning::special},
    {"moe_router_enable_expert_bias", Meaning::ours, "model.e_score_correction_bias"},
    {"moe_router_num_groups", Meaning::ours, "model.n_group"},
    {"moe_router_group_topk", Meaning::ours, "model.topk_group"},
    {"moe_router_topk_scaling_factor", Meaning::ours, "model.routed_scaling_factor"},
    {"moe_router_bias_update_rate", Meaning::ours, "moe.bias_rate"},
    {"moe_aux_loss_coeff", Meaning::special},
    {"moe_z_loss_coeff", Meaning::ours, "moe.z_loss"},
    {"moe_expert_capacity_factor", Meaning::ours, "moe.capacity_factor"},
    {"moe_router_load_balancing_type", Meaning::values, "", kBalancing,
     "aux_loss, seq_aux_loss or none"},
    {"moe_pad_expert_input_to_capacity moe_router_padding_for_quantization "
     "moe_router_padding_for_fp8",
     Meaning::values, "", kExpertPadding},
    {"moe_router_dtype", Meaning::values, "", kRouter},
    {"moe_token_drop_policy", Meaning::values, "", kDrops},
    {"moe_layer_freq", Meaning::special},
    {"expert_model_parallel_size", Meaning::ours, "parallelism.expert"},
    {"expert_tensor_parallel_size", Meaning::values, "", kWholeExperts},
    {"fp8_format", Meaning::ours, "fp8.format"},
    {"fp8_recipe", Meaning::values, "fp8.recipe", kRecipes,
     "delayed, tensorwise, blockwise or mxfp8"},
    {"fp8_margin", Meaning::ours, "fp8.margin"},
    {"fp8_interval", Meaning::ours, "fp8.interval"},
    {"fp8_amax_history_len", Meaning::ours, "fp8.amax_history_len"},
    {"fp8_amax_compute_algo", Meaning::ours, "fp8.amax_compute_algo"},
    {"recompute_granularity", Meaning::values, "model.recompute", kGranularity,
     "full or selective"},
    {"optimizer_cpu_offload", Meaning::offload},
    {"tp_only_amax_red", Meaning::values, "fp8.reduce_amax", kInverted},
    {"fp8_output_proj", Meaning::values, "fp8.exempt_head", kInverted},
    {"fp8_wgrad", Meaning::values, "fp8.override_linear_precision", kWgrad},
    {"fp8_param_gather fp8_param", Meaning::values, "", kGather},
    {"fp8_dot_product_attention", Meaning::ours, "fp8.attention"},
    {"fp8_multi_head_attention", Meaning::off,
     "attention's input and output are not in FP8 outside of it; choose fp8_dot_product_attention"},
    {"fp8_quantizer_factory", Meaning::off, "a class of Python is not run here; choose fp8.recipe"},
    {"context_parallel_size", Meaning::special},
    {"cp_comm_type", Meaning::values, "parallelism.context_kind", kContext,
     "p2p, a2a or all_gather"},
    {"te_precision_config_file", Meaning::ours, "precision.file"},
    {"first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16",
     Meaning::special}};
constexpr ForeignTable kTable = {
    kKeys, "moe_grouped_gemm moe_permute_fusion moe_router_fusion moe_token_dispatcher_type",
    false};

class Megatron : public Program {
 public:
  using Program::Program;

  bool recognizes(const Entry& entry) const override {
    return entry.name.starts_with("fp8_") || find_key(kTable, entry.name) ||
           (entry.spelled == "fp8" && entry.node.kind == Kind::scalar);
  }

  void read(const Entry& entry) override {
    const bool at_top_level = entry.spelled == entry.name;
    if (entry.spelled == "fp8") {
      format(entry);
      return;
    }
    if (entry.name == "moe_router_load_balancing_type") {
      balancing_ = entry;
    }
    pass_.key(entry, kTable, [this](const Entry& it) {
      it.name == "moe_layer_freq"           ? expert_layers(it)
      : it.name == "moe_router_pre_softmax" ? static_cast<void>(pre_softmax_ = it)
      : it.name == "moe_aux_loss_coeff"     ? static_cast<void>(balance_ = it)
      : it.name == "context_parallel_size"  ? context(it)
                                            : blocks(it);
    });
    if (entry.name == "fp8_format" && at_top_level && entry.node.kind != Kind::null) {
      implied_ = pass_.given(entry);
    }
  }

  void finish() override {
    finish_blocks();
    finish_router();
    if (context_ && pass_.value_for("parallelism.context_kind") == nullptr) {
      pass_.put("parallelism.context_kind", *context_, "gather", kNotRing);  // p2p is the default
    }
    if (!implied_) {
      return;
    }
    if (!pass_.has_switch()) {
      pass_.state.fp8 = State::Switch{*implied_};
    }
    const YamlNode* recipe = pass_.value_for("fp8.recipe");
    if (pass_.value_for("fp8.amax_history_len") == nullptr &&
        (recipe == nullptr || recipe->text == "delayed")) {
      pass_.tell(
          "fp8_amax_history_len is not given: with delayed scaling the plan's own history counts, "
          "1024 steps and max (Megatron's defaults are 1 and most_recent)");
    }
  }

 private:
  /// With sigmoids the scores of several experts are always divided by their sum.
  void finish_router() {
    finish_balance();
    const YamlNode* const score = pass_.value_for("model.scoring_func");
    const bool is_sigmoid = score != nullptr && score->text == "sigmoid";
    if (pre_softmax_ && is_sigmoid) {
      pass_.without_meaning(*pre_softmax_);
    } else if (pre_softmax_) {
      if (const auto before = pass_.flag(*pre_softmax_)) {
        pass_.put("model.norm_topk_prob", *pre_softmax_, *before ? "false" : "true");
      }
    }
    if (pass_.value_for("model.num_experts") != nullptr &&
        pass_.value_for("moe.capacity_factor") == nullptr) {
      pass_.tell(
          "moe_expert_capacity_factor is not given: no token is dropped in Megatron then, and here "
          "experts have memory for moe.capacity_factor times the mean");
    }
  }

  /// A kind of balance and its weight may come from different sources.
  void finish_balance() {
    const bool was_off = pass_.state.without_balance;
    if (balancing_ && balancing_->node.kind == Kind::scalar) {
      pass_.state.without_balance = simplified(balancing_->node.text) == "none";
    }
    if (balance_) {
      pass_.state.balance = balance_->node.text;
    }
    const Entry* const entry = balance_ ? &*balance_ : balancing_ ? &*balancing_ : nullptr;
    if (entry != nullptr && pass_.state.without_balance) {
      pass_.put("moe.balance_loss", *entry, "0");
    } else if (balance_) {
      pass_.put("moe.balance_loss", *balance_, balance_->node);
    } else if (was_off && !pass_.state.without_balance) {
      if (pass_.state.balance) {
        pass_.put("moe.balance_loss", *balancing_, *pass_.state.balance);
      } else {
        pass_.tell("moe_aux_loss_coeff is not given: moe.balance_loss stays 0");
      }
    }
  }

  void context(const Entry& entry) {
    pass_.put("parallelism.context", entry, entry.node);
    context_ = count_in(entry.node) > 1 ? std::optional(entry) : std::nullopt;
  }

  /// The blocks with experts: 1 is all of them, and a list has 1 for each that has some.
  void expert_layers(const Entry& entry) {
    std::string dense;
    bool readable = entry.node.kind == Kind::sequence;
    for (size_t i = 0; i < entry.node.items.size(); ++i) {
      const std::string& one = entry.node.items[i].text;
      readable = readable && (one == "0" || one == "1");
      dense += one == "0" ? fmt::format("{}{}", dense.empty() ? "" : ", ", i) : "";
    }
    if (readable) {
      pass_.put("model.dense_layers", entry, "[" + dense + "]");
    } else if (count_in(entry.node) == 1) {
      pass_.tell(entry.spelled + ": 1 is so without it: all blocks have experts");
    } else {
      pass_.complain(entry, fmt::format("expected 1 or a list of 0 and 1 with an entry for each "
                                        "block, got {}; or give model.dense_layers",
                                        describe(entry.node)));
    }
  }

  /// `fp8: hybrid`, as TransformerConfig and NeMo have it.
  void format(const Entry& entry) {
    const std::string text = simplified(entry.node.text);
    if (text == "hybrid" || text == "e4m3") {
      pass_.put("fp8.format", entry, entry.node);
      implied_ = pass_.given(entry);
    } else if (is_off(entry.node)) {
      pass_.without_meaning(entry);
    } else {
      pass_.complain(entry,
                     fmt::format("expected hybrid or e4m3, as in Megatron, or a section of keys, "
                                 "got {}; mixed_precision: fp8 switches FP8 on",
                                 describe(entry.node)));
    }
  }

  /// first_last_layers_bf16 and its two counts.
  void blocks(const Entry& entry) {
    if (entry.name != "first_last_layers_bf16") {
      counts_.push_back(entry);
    } else if (const auto on = pass_.flag(entry)) {
      blocks_ = entry;
      exempts_blocks_ = *on;
    }
  }

  /// The counts are 1 where they are not given.
  void finish_blocks() {
    const auto key_of = [](const Entry& count) {
      return count.name == "num_layers_at_start_in_bf16" ? "fp8.first_blocks" : "fp8.last_blocks";
    };
    for (const Entry& count : counts_) {
      if (exempts_blocks_) {
        pass_.put(key_of(count), count, count.node);
      } else {
        pass_.complain(count, "counts only with first_last_layers_bf16: true; remove it or say so");
      }
    }
    if (blocks_ && !exempts_blocks_) {
      pass_.tell(fmt::format("{}: false is so without it", blocks_->spelled));
    } else if (blocks_) {
      for (const std::string_view key : {"fp8.first_blocks", "fp8.last_blocks"}) {
        if (std::ranges::find(counts_, key, key_of) == counts_.end()) {
          pass_.put(key, *blocks_, "1");
        }
      }
    }
  }

  std::optional<Entry> context_;  // context_parallel_size above 1
  std::optional<Entry> pre_softmax_, balance_, balancing_;
  std::vector<Entry> counts_;    // num_layers_at_..._in_bf16
  std::optional<Entry> blocks_;  // first_last_layers_bf16
  bool exempts_blocks_ = false;
  /// fp8_format (or `fp8`) at the top level, which means "train in FP8" without saying it.
  std::optional<Given> implied_;
};

}  // namespace

std::unique_ptr<Program> megatron(Pass& pass) {
  return std::make_unique<Megatron>(pass);
}

}  // namespace fp8train::dialects
