#include "tensor/tensor_format.h"

#include <fmt/format.h>

#include "base/names.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

/// The arguments that describe() writes in parentheses after the name of the policy.
std::string policy_arguments(const TensorFormat& format) {
  switch (format.policy) {
    case ScalePolicy::none:
    case ScalePolicy::current:
    case ScalePolicy::automatic:
      break;
    case ScalePolicy::fixed:
      return fmt::format("({})", format.fixed_scale);
    case ScalePolicy::delayed: {
      const DelayedScaling& rule = format.delayed;
      return fmt::format("({}, {}{}{}{}{}{})", rule.history_length,
                         name_in(kAmaxAlgorithms, rule.algorithm),
                         rule.margin != 0 ? fmt::format(", margin {}", rule.margin) : "",
                         rule.current_at_first ? ", current at first" : "",
                         rule.unit == WindowUnit::step ? ", per step" : "",
                         rule.reduction == AmaxReduction::none ? ", each rank" : "",
                         rule.interval != 1 ? fmt::format(", every {}", rule.interval) : "");
    }
  }
  return "";
}

}  // namespace

TensorFormat plain(DType dtype) {
  TensorFormat format;
  format.dtype = dtype;
  return format;
}

TensorFormat master_halves() {
  TensorFormat format = plain(DType::bf16);
  format.block = per::group(128);
  format.remainder = true;
  return format;
}

std::string name_of(ScaleBlock block) {
  if (block == per::tensor) {
    return "tensor";
  }
  if (block == per::row) {
    return "row";
  }
  return block.is_group() ? fmt::format("group({})", block.columns)
                          : fmt::format("{}x{}", block.rows, block.columns);
}

std::string_view name_of(ScaleType type) {
  return facts_of(type).name;
}

std::string describe(const TensorFormat& format) {
  std::string text(name_of(format.dtype));
  const char* rounding = format.rounding == Rounding::stochastic ? " stochastic" : "";
  if (!format.is_scaled()) {
    return text + (format.remainder ? " remainder" : rounding);
  }
  text += fmt::format(" {}{} {}{}", name_of(format.block), format.expanded ? " expanded" : "",
                      name_in(kScalePolicies, format.policy), policy_arguments(format));
  if (format.scale_type != ScaleType::f32) {
    text += fmt::format(" {}", name_of(format.scale_type));
  }
  text += format.row_scaled ? " row_scaled" : "";
  text += format.hadamard ? " hadamard" : "";
  text += format.amax_epsilon > 0 ? fmt::format(" epsilon {}", format.amax_epsilon) : "";
  return text + rounding;
}

std::vector<std::string> format_elements() {
  std::vector<std::string> names;
  for (const DType type : RoleTypes::kTypes) {
    names.emplace_back(name_of(type));
  }
  return names;
}

std::vector<std::string> format_blocks() {
  std::vector<std::string> names;
  for (const ScaleBlock block : per::kInUse) {
    names.push_back(name_of(block));
  }
  return names;
}

std::vector<std::string> format_scale_types() {
  std::vector<std::string> names;
  for (const ScaleTypeFacts& facts : kScaleTypeFacts) {
    if (facts.type != ScaleType::f32) {
      names.emplace_back(facts.name);
    }
  }
  return names;
}

}  // namespace fp8train
