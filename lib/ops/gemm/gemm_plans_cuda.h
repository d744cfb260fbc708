#pragma once
// Matrix products through cuBLASLt, whose matrices are column-major: our row-major C [M, N] is its
// D [N, M], so that our b is its A and our a its B. A plan (descriptors and the chosen algorithm)
// is stored per shape, types, scale modes, layout and alignment; the steady step makes none. Only
// for *_cuda.cpp files.

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "device/cuda/cuda_context.h"
#include "ops/gemm/cublaslt_api.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_tuning_cuda.h"
#include "tensor/tensor_format.h"
#include "tensor/view.h"

namespace fp8train::ops::cuda {

/// An operand of a product as the library sees it.
struct ProductOperand {
  ConstView matrix;              ///< as stored, rank 2
  bool transposed;               ///< use the transpose of what is stored
  ScaleBlock block;              ///< block of the scales of an operand of codes
  const void* scales = nullptr;  ///< device memory, as cuBLASLt's scale mode for it reads them;
                                 ///< null for tensor: 1
};

/// A status of cuBLASLt that is not success.
class CublasError : public DeviceError {
 public:
  CublasError(const std::string& what, cublasStatus_t status)
      : DeviceError(what), status_(status) {}
  cublasStatus_t status() const { return status_; }

 private:
  cublasStatus_t status_;
};

/// Bytes at the start of CudaContext::workspace that hold a bias in the type of c; the library gets
/// what lies after kReservedBytes.
constexpr size_t kBiasBytes = size_t{256} << 10;
/// After it: Product::factors.
constexpr size_t kReservedBytes = kBiasBytes + 256;

/// c = op(a) * op(b) + beta * c (+ bias), rounded once. Products of codes read both operands along
/// K.
struct Product {
  ProductOperand a;  ///< op(a): [M, K]
  ProductOperand b;  ///< op(b): [K, N]
  View c;            ///< [M, N]
  float beta;
  bool fast_accumulate;
  /// Device memory: [0] what the product is multiplied by and [1] beta; null: 1, and `beta`.
  const float* factors = nullptr;
  ConstView bias = {};  ///< [N] of c's type, 16-byte aligned, for run_biased(); else empty
};

/// The key under which a plan is stored.
struct PlanKey {
  int64_t m, n, k;
  DType a, b, c;
  ScaleBlock a_block, b_block;
  bool a_transposed, b_transposed, a_scaled, b_scaled, add, biased, factors_on_device,
      fast_accumulate;
  uint32_t a_alignment, b_alignment, c_alignment;

  auto operator<=>(const PlanKey&) const = default;
};

class Plan;

/// A device's cuBLASLt: one handle and its plans.
class GemmPlans final : public CudaExtension {
 public:
  GemmPlans();
  ~GemmPlans() override;

  /// Throws InternalError for FP8 operands that no tensor core takes, CublasError where the library
  /// has no such product or fails.
  void run(const CudaContext& context, const Product& call);

  /// Runs a product with a bias. Returns false, with nothing computed, if the library does not add
  /// the bias, which is found out once for each kind of product.
  bool run_biased(const CudaContext& context, const Product& call);

  /// Plans made from now on take the fastest algorithm, not the library's first (see GemmTuning).
  void tune(const CudaContext& context, const std::filesystem::path& folder) {
    tuning_.emplace(context, folder);
  }

 private:
  std::unique_ptr<Plan> make_plan(const CudaContext& context, const Product& call,
                                  const PlanKey& key);

  cublasLtHandle_t handle_ = nullptr;
  std::optional<GemmTuning> tuning_;
  // Null for a product whose bias the library refuses.
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
};

/// Returns the plans of the device; the first call makes them.
GemmPlans& gemm_plans(CudaContext& context);

/// gemm() of operands that have a scale for each block.
void multiply_blocks(Stream stream, const Gemm& call);

/// `product`, which has no bias of its own, plus `bias` (fp32 [N], may be empty): added by the
/// library, rounded to the type of c, where it can; else by a pass of its own over c, whose result
/// is rounded a second time.
void multiply(Stream stream, Product product, const ConstView& bias);

}  // namespace fp8train::ops::cuda
