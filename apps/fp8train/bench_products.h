#pragma once
// fp8train bench products: the GEMMs of a model's layers, forward and backward, as each mode of
// scaling runs them: with operands that are there already, so that casts are not counted.

#include <cstdint>
#include <string>
#include <vector>

#include "bench_gemm.h"
#include "device/device.h"
#include "precision/linear_plan.h"

namespace fp8train {

/// Which operands are measured.
enum class ProductMode : uint8_t {
  bf16,
  tensor,  ///< one scale per tensor: E4M3 x E4M3, backward also E5M2 x E4M3
  row,
  block,  ///< 1x128 x 128x128, and 1x128 x 1x128 for weight gradients
  mx,     ///< 1x32
};

/// In the order of the enumeration: "bf16", "tensor", "row", "block", "mx".
const std::vector<std::string>& product_mode_names();

/// One way to compute a product c[m, n].
struct ProductRate {
  std::string layer;    ///< "attention.qkv", "head", ...
  std::string product;  ///< "fprop", "dgrad" or "wgrad"
  GemmShape shape;
  std::string operands;             ///< "bf16", "e5m2 x e4m3", "e4m3 1x128 x e4m3 128x128", ...
  std::string result;               ///< "bf16", "fp32" or, where it is added to, "fp32 +="
  bool fast_accumulate = false;     ///< partial sums stay in the tensor core's short accumulator
  double flops_per_second = 0;      ///< 0 where it was not measured
  std::string dequantized_because;  ///< why the device does not multiply the codes; not measured
  std::string error;                ///< what the device said
};

/// The three products of each site on `rows` tokens, every way of `modes`, each measured for
/// `seconds`. Sites of several layers that have the same name within a layer count once. A product
/// that the device refuses has an error and does not end the others.
std::vector<ProductRate> product_rates(Device& device, const std::vector<LinearSite>& sites,
                                       int64_t rows, const std::vector<ProductMode>& modes,
                                       double seconds);

/// Names with commas; empty: all. Throws ConfigError, which names --modes.
std::vector<ProductMode> parse_product_modes(const std::string& text);

}  // namespace fp8train
