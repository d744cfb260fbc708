// Checks which roles of a plan go together, and derives the formats of one parameter from them.

#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "base/text.h"
#include "numeric/with_type.h"
#include "ops/cast/block_formats.h"
#include "ops/exchange/wire.h"
#include "ops/exchange/wire_formats.h"
#include "ops/gemm/gemm_support.h"
#include "precision/plan.h"
#include "tensor/encoded.h"
#include "tensor/level_formats.h"

namespace fp8train {
namespace {

/// `other`: another role of which `why` speaks.
[[noreturn]] void refuse(const char* role, const TensorFormat& format, const std::string& why,
                         const std::string& other = "") {
  const std::string key = fmt::format("precision.{}", role);
  throw KeyError(key, fmt::format(": '{}' {}", describe(format), why), {"precision." + other});
}

bool is_plain(const TensorFormat& format, DType dtype) {
  return format == plain(dtype);
}

/// Checks that a cast can make the format of a GEMM's operand.
void check_operand(const char* role, const TensorFormat& format, DType activation) {
  const auto require = [&](bool holds, const std::string& why) {
    if (!holds) {
      refuse(role, format, "cannot be an operand of a GEMM: " + why);
    }
  };
  if (!format.is_scaled()) {
    return require(
        is_plain(format, activation),
        fmt::format("one without scales is in '{}', like the activations", name_of(activation)));
  }
  const std::string why = ops::why_not_multiplied(format);
  require(why.empty(), why);
  const bool to_nearest = format.rounding == Rounding::nearest_even;
  require(to_nearest || !std::string_view(role).ends_with("_w"), "weights are rounded to nearest");
  require(to_nearest || format.dtype == DType::e2m1, "only e2m1 may be rounded stochastically");
  const bool is_current = format.policy == ScalePolicy::current;
  if (format.block == per::tensor) {
    require(is_current || format.policy == ScalePolicy::delayed,
            "its scale must be current or delayed");
  } else {
    require(is_current, "scales for blocks must be current");
  }
}

struct OperandNames {
  const char* a;
  const char* b;
};

/// `forward` is the format in which the other GEMM of the second operand casts it (null for fprop).
/// Next to a plain operand those codes are read as values.
void check_gemm(const OperandNames& names, const GemmPlan& gemm, DType activation,
                const TensorFormat* forward) {
  check_operand(names.a, gemm.a, activation);
  check_operand(names.b, gemm.b, activation);
  const bool straight_through =
      forward != nullptr && !gemm.a.is_scaled() && gemm.b.is_scaled() && gemm.b == *forward;
  if (straight_through) {
    return;
  }
  const ops::GemmFormats formats = {gemm.a, gemm.b};
  if (!ops::gemm_support(DeviceTraits{}, formats).native) {
    refuse(names.a, gemm.a,
           fmt::format("has no product with precision.{}: '{}' (expected both without scales, or "
                       "scales for {}; one for the tensor also goes with row; both hadamard or "
                       "neither)",
                       names.b, describe(gemm.b), ops::block_pairs_text()),
           names.b);
  }
  // Plans are for GPUs too, which have no alternative to some products.
  const ops::GemmSupport on_gpu = ops::gemm_support({.fp8_gemm_by_library = true}, formats);
  if (!on_gpu.native && !on_gpu.dequantized) {
    refuse(names.a, gemm.a, fmt::format("together with precision.{}: {}", names.b, on_gpu.reason),
           names.b);
  }
}

void check_parameter_wire(const PrecisionPlan& plan) {
  const TensorFormat& wire = plan.parameter_wire;
  if (wire != plan.weight && (wire.is_scaled() || !is_float_type(wire.dtype))) {
    refuse("parameter_wire", wire,
           fmt::format("does not cross a wire: choose fp32, bf16, fp16 or the weight's '{}'",
                       describe(plan.weight)));
  }
}

/// Returns "bf16, fp16, e4m3 or e5m2".
std::string scaled_stored_types_text() {
  std::vector<std::string_view> names;
  for (const DType type : StoredTypes::kTypes) {
    if (type != DType::f32) {
      names.push_back(name_of(type));
    }
  }
  return alternatives(names);
}

void check_stored_format(const char* role, const TensorFormat& format) {
  if (format.remainder) {
    refuse(role, format, "is for precision.master_weight: an fp32 value in two halves");
  }
  if (!is_stored_format(format)) {
    refuse(role, format,
           fmt::format("is not stored: choose fp32, bf16, {}, or {} with a current scale for the "
                       "tensor or {}",
                       level_formats_text(), scaled_stored_types_text(), name_of(kStoredBlock)));
  }
}

void check_weight(const PrecisionPlan& plan) {
  const TensorFormat& value = plan.master_weight ? *plan.master_weight : plan.weight;
  const char* const role = plan.master_weight ? "master_weight" : "weight";
  const bool in_halves = plan.master_weight == master_halves();
  if (in_halves && plan.weight != plain(DType::bf16)) {
    refuse(role, value,
           fmt::format("has a weight in bf16 for its upper half, but precision.weight is '{}': set "
                       "precision.weight: bf16",
                       describe(plan.weight)),
           "weight");
  }
  if (!in_halves) {
    check_stored_format(role, value);
  }
  if (plan.activation == DType::f32 && !is_plain(value, DType::f32)) {
    refuse(role, value,
           "does not go with GEMMs in fp32: choose a plan that computes in fewer bits");
  }
  if (!plan.master_weight) {
    return;
  }
  const bool copy = !plan.weight.is_scaled() && is_plain(plan.weight, plan.activation);
  const bool codes = plan.weight.is_scaled() && plan.weight == plan.fprop.b;
  if (!copy && !codes) {
    std::vector<std::string> read = {fmt::format("'{}'", name_of(plan.activation))};
    if (plan.fprop.b.is_scaled()) {
      read.push_back(fmt::format("'{}'", describe(plan.fprop.b)));
    }
    const bool can_be_own = plan.activation != DType::f32 && is_stored_format(plan.weight);
    refuse(
        "weight", plan.weight,
        fmt::format("is not what GEMMs read, as a weight with a master is: choose {}{}",
                    alternatives(read), can_be_own ? ", or set precision.master_weight: none" : ""),
        "master_weight");
  }
}

void check_gradient(const PrecisionPlan& plan) {
  const TensorFormat& gradient = plan.weight_gradient;
  check_stored_format("weight_gradient", gradient);
  if (gradient.expanded || gradient.rounding != Rounding::nearest_even) {
    refuse("weight_gradient", gradient, "is summed over micro-batches: nearest-even, not expanded");
  }
  TensorFormat wire = plan.gradient_wire;
  if (wire.policy == ScalePolicy::automatic) {
    wire.policy = ScalePolicy::current;
    if (wire != gradient || wire.block != per::tensor || !is_fp8(wire.dtype)) {
      refuse("gradient_wire", plan.gradient_wire,
             fmt::format("scales gradients of its own format, but weight_gradient is '{}'",
                         describe(gradient)));
    }
  }
  const bool crosses = is_stored_format(wire) && !wire.expanded && !wire.remainder &&
                       wire.rounding == Rounding::nearest_even;
  if (!crosses && !ops::is_wire_format(wire)) {
    refuse("gradient_wire", plan.gradient_wire,
           "does not cross a wire: choose " + ops::gradient_wires_text());
  }
  if (gradient.is_scaled() && wire != gradient) {
    refuse("gradient_wire", plan.gradient_wire,
           fmt::format("is another format, and gradients stored as '{}' cross as they are: choose "
                       "that format, or set precision.weight_gradient: bf16",
                       describe(gradient)),
           "weight_gradient");
  }
}

void check_saved(const PrecisionPlan& plan) {
  if (plan.saved_activation != plan.wgrad.b) {
    refuse("saved_activation", plan.saved_activation,
           fmt::format("is what wgrad reads: '{}'", describe(plan.wgrad.b)));
  }
  const TensorFormat groups = saved_groups();
  TensorFormat blocks = plain(DType::e4m3);
  blocks.block = per::block_1x128;
  blocks.policy = ScalePolicy::current;
  const auto is_blocks = [&](TensorFormat format) {
    if (format.scale_type == ScaleType::pow2) {
      format.scale_type = ScaleType::f32;
    }
    return format == blocks;
  };
  const auto check_role = [&](const char* role, const TensorFormat& saved) {
    if (saved != groups && !is_blocks(saved) && !is_plain(saved, plan.activation)) {
      refuse(role, saved,
             fmt::format("is not stored for backward: choose '{}', '{}' or '{}'",
                         name_of(plan.activation), describe(groups), describe(blocks)));
    }
    if (plan.forward_reads_saved && saved != groups) {
      refuse(role, saved,
             fmt::format("is not read in the forward pass: with precision.forward_reads_saved "
                         "choose '{}'",
                         describe(groups)));
    }
  };
  check_role("saved_nonlinear", plan.saved_nonlinear);
  check_role("saved_norm", plan.saved_norm);
  const bool are_codes = plan.expert_dispatch.is_scaled();
  if (are_codes && !has_scaled_gemms(plan)) {
    refuse("expert_dispatch", plan.expert_dispatch,
           "is for experts with scaled GEMMs, and this plan has none: leave it out");
  }
  if (!is_blocks(plan.expert_dispatch) && !is_plain(plan.expert_dispatch, plan.activation)) {
    refuse("expert_dispatch", plan.expert_dispatch,
           fmt::format("does not go to experts: choose '{}'{}", name_of(plan.activation),
                       has_scaled_gemms(plan)
                           ? fmt::format(", '{}' or '{} pow2'", describe(blocks), describe(blocks))
                           : ""));
  }
}

/// Returns the bytes of one element with its share of scales.
double element_bytes(const TensorFormat& format) {
  const double bytes = facts_of(format.dtype).bits / 8.0;
  const ScaleBlock block = format.block.as_stored();
  if (!format.is_scaled() || block.columns == 0) {
    return bytes;
  }
  if (block == kStoredBlock || codec_of(format) == Codec::two_level) {
    return bytes + static_cast<double>(4 * stored_scales(format, kRangeAlignment)) /
                       double{kRangeAlignment};
  }
  const auto scale = static_cast<double>(size_of(dtype_of(format.scale_type)));
  return bytes + scale / (std::max(block.rows, 1) * block.columns);
}

/// Checks that scales which are current at first belong to tensors of a step, all with one window,
/// and that scales of a rank belong to tensors that it has alone.
void check_delayed(const PrecisionPlan& plan) {
  const TensorFormat* seen = nullptr;
  for (const TensorFormat* weight : {&plan.fprop.b, &plan.dgrad.b}) {
    if (weight->policy == ScalePolicy::delayed &&
        weight->delayed.reduction == AmaxReduction::none) {
      refuse(weight == &plan.fprop.b ? "fprop_w" : "dgrad_w", *weight,
             "a weight has the same scale on all ranks: leave out 'each rank'");
    }
  }
  for (const GemmPlan* gemm : plan.gemms()) {
    for (const TensorFormat* operand : {&gemm->a, &gemm->b}) {
      if (!operand->is_current_at_first()) {
        continue;
      }
      if (operand == &plan.fprop.b || operand == &plan.dgrad.b) {
        refuse(operand == &plan.fprop.b ? "fprop_w" : "dgrad_w", *operand,
               "a weight is not scaled by its step: leave out 'current at first'");
      }
      if (seen != nullptr && seen->delayed.history_length != operand->delayed.history_length) {
        refuse("fprop_x", *operand,
               fmt::format("'current at first' together with '{}': give both one history length",
                           describe(*seen)));
      }
      seen = operand;
    }
  }
}

/// Refuses the option if it has no meaning.
void check_self_exact(const PrecisionPlan& plan) {
  const TensorFormat& wire = plan.gradient_wire;
  if (plan.self_exact && (wire == plan.weight_gradient || is_plain(wire, DType::f32) ||
                          wire.policy == ScalePolicy::automatic)) {
    throw KeyError(
        "precision.self_exact",
        fmt::format(
            " has no meaning if gradients are stored in '{}' and cross the wire in '{}': remove it",
            describe(plan.weight_gradient), describe(wire)));
  }
}

}  // namespace

ParameterBytes bytes_per_parameter(const PrecisionPlan& plan) {
  return {.weight = element_bytes(plan.weight),
          .master = plan.master_weight ? element_bytes(*plan.master_weight) : 0.0,
          .gradient = element_bytes(plan.weight_gradient),
          .moment1 = element_bytes(plan.moment1),
          .moment2 = element_bytes(plan.moment2)};
}

TensorFormat running_gradient(const ParameterFormats& formats, bool exchanged) {
  const TensorFormat& stored = formats.gradient;
  const bool is_shared = stored == formats.gradient_wire && is_fp8(stored.dtype) &&
                         stored.policy == ScalePolicy::current && stored.block == per::tensor;
  return exchanged && is_shared ? plain(DType::bf16) : stored;
}

ParameterFormats parameter_formats(const PrecisionPlan& plan) {
  return {.value = plan.master_weight ? *plan.master_weight : plan.weight,
          .gradient = plan.weight_gradient,
          .gradient_wire = plan.gradient_wire,
          .moment1 = plan.moment1,
          .moment2 = plan.moment2,
          .is_master = plan.master_weight.has_value()};
}

void check_roles(const PrecisionPlan& plan) {
  check_gemm({"fprop_x", "fprop_w"}, plan.fprop, plan.activation, nullptr);
  check_gemm({"dgrad_dy", "dgrad_w"}, plan.dgrad, plan.activation, &plan.fprop.b);
  check_gemm({"wgrad_dy", "wgrad_x"}, plan.wgrad, plan.activation, &plan.fprop.a);
  check_weight(plan);
  check_gradient(plan);
  check_parameter_wire(plan);
  check_saved(plan);
  check_delayed(plan);
  check_self_exact(plan);
  check_stored_format("moment1", plan.moment1);
  check_stored_format("moment2", plan.moment2);
}

}  // namespace fp8train
