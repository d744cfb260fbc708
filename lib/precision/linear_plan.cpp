#include "precision/linear_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/key_error.h"
#include "base/nearest.h"
#include "base/text.h"

namespace fp8train {
namespace {

/// Every dimension of the layer must be a multiple of this: each is the K of a GEMM.
int64_t dimension_multiple(const LinearPlan& linear) {
  return std::max(
      {linear.fprop.k_multiple(), linear.dgrad.k_multiple(), linear.wgrad.k_multiple()});
}

int64_t block_count(const std::vector<LinearSite>& sites) {
  int64_t count = 0;
  for (const LinearSite& site : sites) {
    count = std::max(count, site.block + 1);
  }
  return count;
}

/// Position among the linears that are not the head, or -1.
struct Position {
  int64_t index;
  int64_t total;
  int64_t blocks;
};

std::string reason_for(const ExemptionRules& rules, const LinearPlan& linear,
                       const Position& position) {
  const LinearSite& site = linear.site;
  const int64_t multiple = dimension_multiple(linear);
  if (site.is_head && rules.head.value_or(true)) {
    return "output head";
  }
  for (const std::string& pattern : rules.patterns) {
    if (glob_match(pattern, site.name)) {
      return fmt::format("matches exempt pattern '{}'", pattern);
    }
  }
  if (site.block >= 0 && site.block < rules.first_blocks) {
    return rules.first_blocks == 1 ? "in the first block"
                                   : fmt::format("in the first {} blocks", rules.first_blocks);
  }
  if (site.block >= 0 && site.block >= position.blocks - rules.last_blocks) {
    return rules.last_blocks == 1 ? "in the last block"
                                  : fmt::format("in the last {} blocks", rules.last_blocks);
  }
  if (!site.is_head && position.index < rules.first_linears) {
    return rules.first_linears == 1
               ? "the first linear"
               : fmt::format("among the first {} linears", rules.first_linears);
  }
  if (!site.is_head && position.index >= position.total - rules.last_linears) {
    return rules.last_linears == 1 ? "the last linear"
                                   : fmt::format("among the last {} linears", rules.last_linears);
  }
  if (std::min(site.in_features, site.out_features) < rules.min_dimension) {
    return fmt::format("smaller than min_dimension {}", rules.min_dimension);
  }
  for (const int64_t dimension : {site.in_features, site.out_features}) {
    if (dimension % multiple != 0) {
      return fmt::format("dimension {} is not a multiple of {}", dimension, multiple);
    }
  }
  return {};
}

/// Returns the layer's name as patterns of `naming` spell it, or nothing if it has none there.
std::string name_in(const LayerNaming& naming, const LinearSite& site) {
  if (naming.names.empty()) {
    return site.name;
  }
  for (const auto& [ours, theirs] : naming.names) {
    if (site.block >= 0 && site.name.ends_with("." + ours)) {
      return naming.prefix + site.name.substr(0, site.name.size() - ours.size()) + theirs;
    }
  }
  return {};
}

bool matches(const LayerPlan& layer, const LinearSite& site) {
  const std::string name = name_in(layer.naming, site);
  return !name.empty() && glob_match(layer.pattern, name);
}

void check_patterns(const PrecisionPlan& plan, const std::vector<LinearSite>& sites) {
  std::vector<std::string> names;
  for (const LinearSite& site : sites) {
    names.push_back(site.name);
  }
  for (const std::string& pattern : plan.exemptions.patterns) {
    check_pattern("fp8.exempt", pattern, "linear layer", names);
  }
  for (const LayerPlan& layer : plan.layers) {
    if (layer.naming.names.empty()) {  // a file may be written for several models
      check_pattern("precision.layers", layer.pattern, "linear layer", names);
    }
  }
}

/// Returns the last one that matches, or null for the run's plan.
const LayerPlan* layer_plan_of(const PrecisionPlan& plan, const LinearSite& site) {
  const LayerPlan* found = nullptr;
  for (const LayerPlan& layer : plan.layers) {
    found = matches(layer, site) ? &layer : found;
  }
  return found;
}

/// Refuses a plan with scales that is chosen only for layers that are exempt from them.
void check_layers(const PrecisionPlan& plan, const std::vector<LinearPlan>& linears) {
  for (const LayerPlan& layer : plan.layers) {
    if (!layer.naming.names.empty()) {
      continue;
    }
    const LinearPlan* exempt = nullptr;
    bool used = !layer.is_scaled();
    for (const LinearPlan& linear : linears) {
      if (linear.layer_pattern == layer.pattern) {
        used = used || linear.exempt_reason.empty();
        exempt = &linear;
      }
    }
    if (!used && exempt == nullptr) {
      throw KeyError(
          "precision.layers",
          fmt::format(": '{}' has no effect: later patterns match all of its "
                      "layers, and the last one that matches counts; remove it or move it down",
                      layer.pattern));
    }
    if (!used) {
      throw KeyError(
          "precision.layers",
          fmt::format(": '{}': {} reaches no layer, because all that match are exempt ({}: {})",
                      layer.pattern, layer.plan, exempt->site.name, exempt->exempt_reason));
    }
  }
}

/// Returns the formats that the layer would have without exemptions.
LinearPlan planned(const PrecisionPlan& plan, const LinearSite& site) {
  LinearPlan linear = {static_cast<const LayerGemms&>(plan), site};
  linear.activation = plan.activation;
  linear.evaluate_scaled = plan.evaluate_scaled;
  linear.has_plain_stages = !plan.schedule.empty();
  if (const LayerPlan* layer = layer_plan_of(plan, site)) {
    static_cast<LayerGemms&>(linear) = static_cast<const LayerGemms&>(*layer);
    linear.layer_plan = layer->plan;
    linear.layer_pattern = layer->pattern;
    linear.layer_key = layer->key();
    linear.evaluate_scaled = layer->evaluate_scaled.value_or(plan.evaluate_scaled);
  }
  return linear;
}

/// Sets the GEMMs of a layer that reads the product of a SwiGLU.
void apply_swiglu(const PrecisionPlan& plan, LinearPlan& linear) {
  if (!linear.site.reads_swiglu || !linear.exempt_reason.empty()) {
    return;
  }
  linear.swiglu = plan.swiglu;
  const TensorFormat activation = plain(plan.activation);
  const GemmPlan plain_gemm = {activation, activation, false, false};
  if (plan.swiglu == SwigluInput::high_precision) {
    linear.fprop = linear.wgrad = plain_gemm;
    if (linear.dgrad.a.is_scaled() != linear.dgrad.b.is_scaled()) {
      linear.dgrad = plain_gemm;  // it would read fprop's codes
    }
  } else if (plan.swiglu == SwigluInput::smoothed) {
    const bool both = is_fp8(linear.fprop.a.dtype) && is_fp8(linear.fprop.b.dtype) &&
                      linear.dgrad.a.is_scaled() == linear.dgrad.b.is_scaled() &&
                      linear.wgrad.a.is_scaled() == linear.wgrad.b.is_scaled();
    if (!both) {
      throw KeyError(
          "fp8.swiglu",
          fmt::format(
              ": smooth does not go together with precision.layers '{}': {} for {}, whose forward "
              "GEMM must read x and w in FP8 and whose backward GEMMs both operands alike",
              linear.layer_pattern, linear.layer_plan, linear.site.name));
    }
    // w / s is another tensor in every pass, so its scale follows from the tensor itself.
    TensorFormat& w = linear.fprop.b;
    w.policy = ScalePolicy::current;
    w.delayed = {};
    w.fixed_scale = 1.0F;
  }
}

/// Checks that values that are made again in backward have a scale for each block, or none: they
/// are cast again.
void check_recompute(const LinearPlan& linear) {
  const TensorFormat& x = linear.wgrad.b;
  const bool by_tensor = x.is_scaled() && x.block == per::tensor;
  const bool codes_as_values = x.is_scaled() && !linear.wgrad.a.is_scaled();
  if (linear.remade_input && (by_tensor || codes_as_values)) {
    throw KeyError(
        "precision.recompute_swiglu",
        fmt::format(
            ": wgrad of {} reads x as '{}', which cannot be made again in the backward pass: "
            "choose a format with a scale for each block, or without scales (precision.wgrad_x{})",
            linear.site.name, describe(x), linear.layer_plan.empty() ? "" : ", precision.layers"));
  }
}

void check_swiglu(const PrecisionPlan& plan, const std::vector<LinearPlan>& linears) {
  if (plan.swiglu == SwigluInput::as_planned) {
    return;
  }
  const char* value = plan.swiglu == SwigluInput::smoothed ? "smooth" : "bf16_down_input";
  const LinearPlan* exempt = nullptr;
  for (const LinearPlan& linear : linears) {
    if (linear.swiglu != SwigluInput::as_planned) {
      return;
    }
    exempt = linear.site.reads_swiglu ? &linear : exempt;
  }
  if (exempt == nullptr) {
    throw KeyError(
        "fp8.swiglu",
        fmt::format(": {} has no meaning for this model: its MLP is not a SwiGLU; remove it",
                    value));
  }
  throw KeyError(
      "fp8.swiglu",
      fmt::format(": {} has no meaning here: every down projection is exempt ({}: {}); remove it",
                  value, exempt->site.name, exempt->exempt_reason));
}

}  // namespace

void check_pattern(std::string_view key, const std::string& pattern, std::string_view noun,
                   std::vector<std::string> names) {
  if (std::ranges::any_of(names, [&](const auto& name) { return glob_match(pattern, name); })) {
    return;
  }
  const std::vector<std::string> near = nearest_names(pattern, names);
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with("layers.") && !name.starts_with("layers.0.");
  });
  throw KeyError(std::string(key),
                 fmt::format(": '{}' matches no {}; {}", pattern, noun,
                             near.empty() ? "those of block 0 and outside are: " + joined(names)
                                          : fmt::format("did you mean {}?", alternatives(near))));
}

bool glob_match(const std::string& pattern, const std::string& text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

bool make_same_calls(const LinearPlan& a, const LinearPlan& b) {
  return a.fprop == b.fprop && a.dgrad == b.dgrad && a.wgrad == b.wgrad &&
         a.activation == b.activation && a.evaluate_scaled == b.evaluate_scaled &&
         a.swiglu == b.swiglu && a.remade_input == b.remade_input &&
         a.has_plain_stages == b.has_plain_stages;
}

bool crosses_as_codes(const TensorFormat& along_rows, const TensorFormat& along_columns,
                      const TensorFormat& other) {
  return along_rows.is_scaled() && along_rows.block == per::tensor && along_columns == along_rows &&
         (!other.is_scaled() || other.block == per::tensor);
}

TensorFormat gathered_format(const LinearPlan& linear) {
  const bool is_x = linear.site.split == Split::columns;
  const TensorFormat& rows = is_x ? linear.fprop.a : linear.dgrad.a;
  const bool as_codes =
      !linear.site.is_head && (is_x ? crosses_as_codes(rows, linear.wgrad.b, linear.wgrad.a)
                                    : crosses_as_codes(rows, linear.wgrad.a, linear.wgrad.b));
  return as_codes ? rows : plain(linear.activation);
}

LinearSite LinearSite::of_rank(int64_t ranks) const {
  LinearSite part = *this;
  if (split == Split::columns) {
    part.out_features /= ranks;
    for (int64_t& rows : part.matrices) {
      rows /= ranks;
    }
  } else if (split == Split::rows) {
    part.in_features /= ranks;
  }
  return part;
}

std::string swiglu_note(const LinearPlan& linear) {
  switch (linear.swiglu) {
    case SwigluInput::as_planned:
      return linear.remade_input ? "x is recomputed in backward (precision.recompute_swiglu)" : "";
    case SwigluInput::smoothed:
      return "smoothed: each channel of x times a power of two, w divided by it and cast in each "
             "forward pass (fp8.swiglu: smooth)";
    case SwigluInput::high_precision:
      return fmt::format(
          "x stays in {}, so fprop and wgrad stay out of scaled formats (fp8.swiglu: "
          "bf16_down_input)",
          name_of(linear.activation));
  }
  return {};
}

std::string layer_plan_note(const LinearPlan& linear) {
  return linear.layer_plan.empty() ? ""
                                   : fmt::format("plan {} ({}: '{}')", linear.layer_plan,
                                                 linear.layer_key, linear.layer_pattern);
}

std::vector<LinearPlan> plan_linears(const PrecisionPlan& plan,
                                     const std::vector<LinearSite>& sites) {
  check_patterns(plan, sites);
  const TensorFormat activation = plain(plan.activation);
  const GemmPlan plain_gemm = {activation, activation, false, false};
  Position position = {
      0, std::count_if(sites.begin(), sites.end(), [](const auto& site) { return !site.is_head; }),
      block_count(sites)};
  std::vector<LinearPlan> plans;
  for (const LinearSite& site : sites) {
    LinearPlan linear = planned(plan, site);
    if (linear.is_scaled()) {
      linear.exempt_reason = reason_for(plan.exemptions, linear, position);
    } else if (has_scaled_gemms(plan)) {
      linear.exempt_reason = layer_plan_note(linear);
    }
    if (!linear.exempt_reason.empty()) {
      linear.fprop = linear.dgrad = linear.wgrad = plain_gemm;
    }
    linear.remade_input = plan.recompute_swiglu && site.reads_swiglu;
    apply_swiglu(plan, linear);
    check_recompute(linear);
    position.index += site.is_head ? 0 : 1;
    plans.push_back(std::move(linear));
  }
  check_layers(plan, plans);
  check_swiglu(plan, plans);
  return plans;
}

}  // namespace fp8train
