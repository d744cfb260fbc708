// Which cells of a plan go together, and what they mean for one parameter.

#include <fmt/format.h>

#include "base/error.h"
#include "precision/plan.h"
#include "tensor/stored_tensor.h"

namespace fp8train {
namespace {

[[noreturn]] void refuse(const char* cell, const TensorFormat& format, const std::string& why) {
  throw ConfigError(fmt::format("precision.{}: '{}' {}", cell, describe(format), why));
}

bool is_plain(const TensorFormat& format, DType dtype) {
  return format == plain(dtype);
}

void check_kept(const char* cell, const TensorFormat& format) {
  if (!is_stored_format(format)) {
    refuse(cell, format,
           "is not kept: choose fp32, bf16, or fp16, bf16, e4m3 or e5m2 with a current scale for "
           "the tensor or group(128)");
  }
}

void check_weight(const PrecisionPlan& plan) {
  if (!plan.master_weight) {
    check_kept("weight", plan.weight);
    return;
  }
  check_kept("master_weight", *plan.master_weight);
  const bool copy = !plan.weight.is_scaled() && is_plain(plan.weight, plan.activation);
  const bool codes = plan.weight.is_scaled() && plan.weight == plan.fprop.b;
  if (!copy && !codes) {
    refuse("weight", plan.weight,
           fmt::format("beside a master weight is what GEMMs read: '{}' or '{}'",
                       name_of(plan.activation), describe(plan.fprop.b)));
  }
}

void check_gradient(const PrecisionPlan& plan) {
  const TensorFormat& gradient = plan.weight_gradient;
  check_kept("weight_gradient", gradient);
  if (gradient.expanded || gradient.rounding != Rounding::nearest_even) {
    refuse("weight_gradient", gradient, "is summed over micro-batches: nearest-even, not expanded");
  }
  TensorFormat wire = plan.gradient_wire;
  if (wire.policy == ScalePolicy::automatic) {
    wire.policy = ScalePolicy::current;
    if (wire != gradient || wire.granularity != Granularity::tensor || !is_fp8(wire.dtype)) {
      refuse("gradient_wire", plan.gradient_wire,
             fmt::format("scales gradients of its own format, but weight_gradient is '{}'",
                         describe(gradient)));
    }
  }
  if (!is_stored_format(wire) || wire.expanded || wire.rounding != Rounding::nearest_even) {
    refuse("gradient_wire", plan.gradient_wire,
           "does not cross a wire: choose fp32, bf16, or e4m3 or e5m2 with a scale for the tensor "
           "or group(128)");
  }
}

void check_saved(const PrecisionPlan& plan) {
  if (plan.saved_activation != plan.wgrad.b) {
    refuse("saved_activation", plan.saved_activation,
           fmt::format("is what wgrad reads: '{}'", describe(plan.wgrad.b)));
  }
  TensorFormat compressed = plain(DType::e4m3);
  compressed.granularity = Granularity::group;
  compressed.group_size = 16;
  compressed.policy = ScalePolicy::current;
  const TensorFormat& saved = plan.saved_nonlinear;
  if (saved != compressed && !is_plain(saved, plan.activation)) {
    refuse("saved_nonlinear", saved,
           fmt::format("is not kept for backward: choose '{}' or '{}'", name_of(plan.activation),
                       describe(compressed)));
  }
}

/// Bytes of one element with its share of scales.
double element_bytes(const TensorFormat& format) {
  const auto bytes = static_cast<double>(size_of(format.dtype));
  const double scale = format.scale_type == ScaleType::e8m0 ? 1.0 : 4.0;
  switch (format.is_scaled() ? format.granularity : Granularity::tensor) {
    case Granularity::group:
      return bytes + (format.expanded ? 12.0 : 4.0) / format.group_size;
    case Granularity::block_1x128:
      return bytes + scale / 128;
    case Granularity::block_128x128:
      return bytes + scale / (128 * 128);
    case Granularity::block_1x32:
      return bytes + scale / 32;
    case Granularity::tensor:
    case Granularity::row:
      return bytes;
  }
  return bytes;
}

}  // namespace

ParameterBytes bytes_per_parameter(const PrecisionPlan& plan) {
  return {.weight = element_bytes(plan.weight),
          .master = plan.master_weight ? element_bytes(*plan.master_weight) : 0.0,
          .gradient = element_bytes(plan.weight_gradient),
          .moment1 = element_bytes(plan.moment1),
          .moment2 = element_bytes(plan.moment2)};
}

ParameterFormats parameter_formats(const PrecisionPlan& plan) {
  return {.value = plan.master_weight ? *plan.master_weight : plan.weight,
          .gradient = plan.weight_gradient,
          .gradient_wire = plan.self_exact ? plan.weight_gradient : plan.gradient_wire,
          .moment1 = plan.moment1,
          .moment2 = plan.moment2,
          .is_master = plan.master_weight.has_value()};
}

void check_cells(const PrecisionPlan& plan) {
  check_weight(plan);
  check_gradient(plan);
  check_saved(plan);
  check_kept("moment1", plan.moment1);
  check_kept("moment2", plan.moment2);
}

}  // namespace fp8train
