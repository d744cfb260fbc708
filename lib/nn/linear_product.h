#pragma once
// One GEMM of a linear layer, with operands in the forms that its plan says.

#include <array>
#include <string_view>

#include "nn/context.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
#include "precision/linear_plan.h"
#include "tensor/quantized.h"

namespace fp8train {

/// Whether each block has a scale, and not the tensor.
inline bool blockwise(const TensorFormat& format) {
  return format.is_scaled() && format.block != per::tensor;
}

/// The order in which the device's GEMMs read the scales of blocks.
ScaleLayout block_layout(const DeviceTraits& traits);

/// A tensor as one GEMM reads it: plain, or in one orientation of a quantized tensor.
struct LinearOperand {
  ConstView plain;
  QuantizedTensor quantized;  ///< empty for a plain operand; blocks lie along the contracted extent
  bool along_columns = false;  ///< the GEMM contracts the tensor along its columns
  bool dequantize = false;     ///< `quantized`, its codes along rows, is read as values
};

/// c = a b + beta c (+ bias), each operand contracted along the extent that it was made for.
struct LinearProduct {
  const GemmPlan& plan;  ///< the product's accumulation is read from it
  LinearOperand a, b;
  View c;
  float beta = 0.0F;
  ConstView bias;
};

/// Runs the product, asynchronously on the context's stream. Memory that it needs in addition to
/// its operands is taken from the scratch arena.
void multiply(const StepContext& context, const LinearProduct& product);

/// Returns the type that wgrad's product writes where nothing is added to the gradient: bf16 for a
/// gradient in bf16 of a layer that computes in bf16, as a product rounds its fp32 sum once, like
/// ops::store; else fp32. (cuBLASLt has no products of fp16 or fp32 operands with a bf16 result.)
DType gradient_result(const LinearPlan& plan, const TensorFormat& gradient);

/// Returns how a device with these traits computes a layer's GEMMs (fprop, dgrad, wgrad) on `rows`
/// tokens. `gradient`: of the weight.
std::array<ops::GemmSupport, 3> product_support(const DeviceTraits& traits, const LinearPlan& plan,
                                                int64_t rows, const TensorFormat& gradient = {});

/// Why a layer's GEMMs (fprop, dgrad, wgrad) on `rows` tokens are computed from dequantized
/// operands on a device with these traits; empty for a GEMM that is not.
std::array<std::string_view, 3> dequantized_because(const DeviceTraits& traits,
                                                    const LinearPlan& plan, int64_t rows,
                                                    const TensorFormat& gradient = {});

}  // namespace fp8train
