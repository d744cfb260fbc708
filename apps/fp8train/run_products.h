#pragma once
// How a device multiplies each linear layer of a run. `explain`, `check`,
// `estimate`, the wizard and the overview of a run all ask here, so that they cannot disagree.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "engine/engine.h"
#include "ops/gemm/gemm_support.h"
#include "precision/linear_plan.h"

namespace fp8train {

/// How a device multiplies the linear layers of a run.
struct RunProducts {
  std::vector<LinearPlan> linears;
  /// For each layer how its fprop, dgrad and wgrad are computed.
  std::vector<std::array<ops::GemmSupport, 3>> support;
  DType plain = DType::bf16;  ///< type of the other GEMMs, and of operands that are decoded
  std::string asked;          ///< "FP8", if that is what the plan scales GEMMs to; else empty
  std::string advice;  ///< how many ranks could share each layer instead; empty: as many as do
  std::vector<bool> frozen;  ///< for each layer, whether training.frozen has its weight: no wgrad

  /// Why a GEMM of a layer multiplies operands that are decoded to 16 bits; empty: it does not.
  std::string_view decoded_because(size_t layer, size_t gemm) const {
    const ops::GemmSupport& one = support[layer][gemm];
    return one.dequantized ? one.reason : std::string_view{};
  }
  /// Whether a layer has a scaled format.
  bool has_scaled() const;
  /// Whether no GEMM's operands are decoded, and none is refused.
  bool all_native() const;
};

/// Returns the products of the engine's linear layers on a device with these traits.
RunProducts products_of(const EngineSettings& engine, const DeviceTraits& traits);

/// Returns "128 of 129 linear layers in FP8, the others in bf16", or what else becomes of them on
/// the device, which messages call `device`: "NONE of 129 linear layers multiplies in FP8 on a100:
/// ...".
std::string describe_products(const RunProducts& products, const std::string& device);

/// Plans that ask for products in 8 bits or fewer and have none on a device: those that are
/// multiplied in 16 bits there, and those that are refused.
struct PlansElsewhere {
  std::vector<std::string> in_16_bits, refused;
};
/// Returns them for a device with these traits and a model whose extents suit all products.
PlansElsewhere plans_elsewhere(const DeviceTraits& traits);

}  // namespace fp8train
