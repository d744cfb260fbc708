#pragma once
// One GEMM of a layer, with operands in the forms that its plan says, and how devices compute it.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "nn/context.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
#include "precision/linear_plan.h"
#include "tensor/encoded.h"

namespace fp8train {

/// c = op(a) op(b)^T + beta c (+ bias). `transposed` of an operand means that what is stored is
/// contracted along its columns. A quantized operand next to a plain one is read as values.
struct LinearProduct {
  const GemmPlan& plan;  ///< the product's accumulation is read from it
  ops::GemmOperand a;    ///< op(a): [M, K]
  ops::GemmOperand b;    ///< op(b): [N, K]
  View c;                ///< [M, N]
  float beta = 0.0F;
  ConstView bias;
};

/// Runs the product, asynchronously on the context's stream. Memory that it needs in addition to
/// its operands is taken from the scratch arena.
void multiply(const StepContext& context, const LinearProduct& product);

/// The same where ranks of the tensor axis have parts of the contracted extent K, or as many
/// partial products are made as ranks may have (StepContext::tensor_parts), each of its part of
/// every one of `pieces`, which are K together: c, fp32, is the sum over this rank's parts, in
/// pairs. A bias is added once over all ranks.
void multiply_in_parts(const StepContext& context, const LinearProduct& product,
                       std::span<const int64_t> pieces);
/// c = this rank's rows of the sum over ranks, rounded once to its type. Called only if
/// StepContext::divides_sums() is true.
void multiply_over_ranks(const StepContext& context, const LinearProduct& product,
                         std::span<const int64_t> pieces);

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
