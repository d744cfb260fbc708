#include "precision/plan_table.h"

#include <fmt/format.h>

#include <utility>

#include "base/screen.h"

namespace fp8train {
namespace {

/// Returns the formats in which GEMMs read one tensor: two if its two GEMMs differ.
std::string read_as(const TensorFormat& first, const TensorFormat& second) {
  return first == second ? describe(first) : describe(first) + " and " + describe(second);
}

/// Returns "x, w e4m3 tensor current; dy e5m2 tensor current"; tensors that are alike are listed
/// together.
std::string computation(const PrecisionPlan& plan) {
  const std::pair<const char*, std::string> tensors[] = {
      {"x", read_as(plan.fprop.a, plan.wgrad.b)},
      {"w", read_as(plan.fprop.b, plan.dgrad.b)},
      {"dy", read_as(plan.dgrad.a, plan.wgrad.a)}};
  std::vector<std::pair<std::string, std::string>> groups;  // tensors, format
  for (const auto& [tensor, format] : tensors) {
    bool found = false;
    for (auto& [names, known] : groups) {
      if (known == format) {
        names += std::string(", ") + tensor;
        found = true;
      }
    }
    if (!found) {
      groups.emplace_back(tensor, format);
    }
  }
  if (groups.size() == 1) {
    return groups.front().second;
  }
  std::string text;
  for (const auto& [names, format] : groups) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", names, format);
  }
  return text;
}

std::string gemm_text(const GemmPlan& gemm) {
  return fmt::format("{}  x  {}{}", describe(gemm.a), describe(gemm.b),
                     gemm.emulate_accumulator ? ", fast accumulation (14 bits, emulated)"
                     : gemm.fast_accumulate   ? ", fast accumulation"
                                              : "");
}

std::string moments(const PrecisionPlan& plan) {
  return describe(plan.moment1) + " + " + describe(plan.moment2);
}

std::string master(const PrecisionPlan& plan) {
  return plan.master_weight ? describe(*plan.master_weight) : "-";
}

/// Returns "e4m3 T*" or "e4m3 128x128", without facts that few plans differ in.
std::string in_short(const TensorFormat& format) {
  std::string text(name_of(format.dtype));
  if (!format.is_scaled()) {
    return text;
  }
  const ScaleBlock block = format.block;
  text += block == per::tensor ? " T" : block == per::row ? " R" : " " + name_of(block);
  return text + (format.policy == ScalePolicy::delayed ? "*" : "");
}

std::string_view type_of(const std::optional<TensorFormat>& format) {
  return format ? name_of(format->dtype) : "-";
}

std::string attention_text(const PrecisionPlan& plan) {
  const AttentionPlan& formats = plan.attention;
  if (formats.gemms() == Fp8Attention::none) {
    return std::string(name_of(plan.activation));
  }
  const std::string forward =
      fmt::format("q, k and v {}; probabilities {}; output {}", describe(formats.qkv),
                  describe(formats.probabilities), describe(formats.out));
  return formats.gemms() == Fp8Attention::forward
             ? fmt::format("{}; backward {}", forward, name_of(plan.activation))
             : fmt::format("{}; dout {}; gradients of scores {}; dq, dk and dv {}", forward,
                           describe(formats.dout), describe(formats.dscores),
                           describe(formats.dqkv));
}

std::string swiglu_text(const PrecisionPlan& plan) {
  const char* again = plan.recompute_swiglu ? "; recomputed in backward" : "";
  switch (plan.swiglu) {
    case SwigluInput::as_planned:
      return std::string("like x") + again;
    case SwigluInput::smoothed:
      return std::string("like x, each channel times a power of two that w is divided by") + again;
    case SwigluInput::high_precision:
      return fmt::format("{} in fprop and wgrad of mlp.down{}", name_of(plan.activation), again);
  }
  return {};
}

}  // namespace

std::vector<PlanColumn> table_columns(const PrecisionPlan& plan) {
  const std::string wire = plan.self_exact ? " (own part exact)" : "";
  return {{kComputationColumn, computation(plan)},
          {"wire", describe(plan.gradient_wire) + wire},
          {"weight", describe(plan.weight)},
          {"master", master(plan)},
          {"weight gradient", describe(plan.weight_gradient)},
          {"m + v", moments(plan)},
          {kBytesColumn, bytes_text(plan)}};
}

std::string bytes_text(const PrecisionPlan& plan) {
  const std::string text = fmt::format("{:.2f}", bytes_per_parameter(plan).total());
  return text.ends_with(".00") ? text.substr(0, text.size() - 3) : text;
}

PlanRequest request_of(const PrecisionPlan& plan) {
  PlanRequest request;
  for (const GemmPlan* gemm : plan.gemms()) {
    request.override_linear_precision.push_back(!gemm->a.is_scaled());
    request.fast_accumulation.push_back(gemm->fast_accumulate);
  }
  const TensorFormat& x = plan.fprop.a;
  if (x.is_scaled()) {
    request.format = plan.dgrad.a.dtype == DType::e5m2 ? Fp8Format::hybrid : Fp8Format::e4m3;
    request.use_autocast_during_eval = plan.evaluate_scaled;
    request.swiglu = plan.swiglu;
    request.attention = plan.attention.gemms();
    request.accumulation =
        plan.fprop.emulate_accumulator ? Accumulation::emulated : Accumulation::exact;
  }
  if (x.policy == ScalePolicy::delayed) {
    request.margin = x.delayed.margin;
    request.interval = x.delayed.interval;
    request.amax_history_len = x.delayed.history_length;
    request.amax_compute_algo = x.delayed.algorithm;
    request.reduce_amax = x.delayed.reduction == AmaxReduction::ranks;
  } else if (x.policy == ScalePolicy::current) {
    request.power_2_scale = x.scale_type == ScaleType::pow2;
  }
  request.self_exact = plan.self_exact;
  request.forward_reads_saved = plan.forward_reads_saved;
  request.recompute_swiglu = plan.recompute_swiglu;
  request.exemptions = plan.exemptions;
  if (has_scaled_gemms(plan)) {
    request.exemptions.head = plan.exemptions.head.value_or(true);
  }
  for (const Role& role : plan_roles()) {
    request.roles.*role.requested = describe_role(role, plan);
  }
  return request;
}

std::vector<PlanColumn> plan_columns(const PrecisionPlan& plan) {
  const bool is_head_exempt = !has_scaled_gemms(plan) || plan.exemptions.head.value_or(true);
  const bool alike = plan.evaluate_scaled || !(has_scaled_gemms(plan) || plan.forward_reads_saved);
  const std::string in_forward = plan.forward_reads_saved ? ", also read by forward" : "";
  return {{"fprop x, w", gemm_text(plan.fprop)},
          {"dgrad dy, w", gemm_text(plan.dgrad)},
          {"wgrad dy, x", gemm_text(plan.wgrad)},
          {"output head", std::string(is_head_exempt ? name_of(plan.activation) : "like others")},
          {"attention", attention_text(plan)},
          {"saved activation", describe(plan.saved_activation)},
          {"saved norm input", describe(plan.saved_norm) + in_forward},
          {"saved nonlinear", describe(plan.saved_nonlinear) + in_forward},
          {"expert dispatch", describe(plan.expert_dispatch)},
          {"activations", std::string(name_of(plan.activation))},
          {"weight", describe(plan.weight)},
          {"master weight", master(plan)},
          {"weight gradient", describe(plan.weight_gradient)},
          {"gradient wire", describe(plan.gradient_wire)},
          {"own contribution", plan.self_exact ? "not rounded" : "rounded to the wire's format"},
          {"parameter wire", describe(plan.parameter_wire)},
          {"moment 1", describe(plan.moment1)},
          {"moment 2", describe(plan.moment2)},
          {kBytesColumn, bytes_text(plan)},
          {"SwiGLU product", swiglu_text(plan)},
          {"loss scaling", plan.dynamic_loss_scaling ? "dynamic" : "-"},
          {"evaluation", alike ? "in the same formats"
                               : std::string("in ") + std::string(name_of(plan.activation))}};
}

std::string plan_table_text(size_t columns) {
  std::vector<TableColumn> table = {{"plan"},     {"x"},         {"w"},         {"dy"},
                                    {"wire", 4},  {"weight", 3}, {"master", 5}, {"wgrad", 6},
                                    {"m + v", 2}, {"bytes"}};
  for (const std::string& name : plan_names()) {
    const PrecisionPlan plan = plan_named(name);
    const std::string texts[] = {
        name,
        in_short(plan.fprop.a),
        in_short(plan.fprop.b),
        in_short(plan.dgrad.a),
        std::string(type_of(plan.gradient_wire)),
        std::string(type_of(plan.weight)),
        std::string(type_of(plan.master_weight)),
        std::string(type_of(plan.weight_gradient)),
        fmt::format("{} {}", name_of(plan.moment1.dtype), name_of(plan.moment2.dtype)),
        bytes_text(plan)};
    for (size_t i = 0; i < table.size(); ++i) {
      table[i].texts.push_back(texts[i]);
    }
  }
  return table_text(std::move(table), columns) +
         wrapped(
             "x, w, dy: what the GEMMs read, with a scale for the tensor (T), a row (R) or a "
             "block; "
             "*: from steps before. Bytes are per parameter of a linear layer, moments included.\n",
             columns);
}

std::string plan_table_markdown() {
  std::string table;
  std::string rule;
  for (const std::string& name : plan_names()) {
    const PrecisionPlan plan = plan_named(name);
    const PlanOrigin origin = plan_origin(name);
    const std::vector<PlanColumn> columns = table_columns(plan);
    if (table.empty()) {
      table = "| plan | selected by |";
      rule = "|---|---|";
      for (const PlanColumn& column : columns) {
        table += fmt::format(" {} |", column.title);
        rule += "---|";
      }
      table += " source |\n" + rule + "---|\n";
    }
    table += fmt::format("| `{}` | `{}` |", name, origin.selected_by);
    for (const PlanColumn& column : columns) {
      table += fmt::format(" {} |", column.text);
    }
    table += fmt::format(" {} |\n", origin.source);
  }
  return table;
}

}  // namespace fp8train
