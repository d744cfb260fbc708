#pragma once
// Matrix products through cuBLASLt, whose matrices are column-major: our row-major C [M, N] is its
// D [N, M], so that our b is its A and our a its B. A plan (descriptors and the chosen algorithm)
// is stored per shape, types, scale modes, layout and alignment; the steady step makes none. Only
// for *_cuda.cpp files.

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_context.h"
#include "device/device.h"
#include "ops/gemm/cublaslt_api.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
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
  /// Whether the library does not take the product, and nothing else is wrong.
  bool is_refusal() const {
    return status_ == CUBLAS_STATUS_NOT_SUPPORTED || status_ == CUBLAS_STATUS_INVALID_VALUE;
  }

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

/// A device's cuBLASLt: one handle, its plans, and which products it refuses.
class GemmPlans final : public CudaExtension, public Fp8Library {
 public:
  explicit GemmPlans(const CudaContext& context);
  ~GemmPlans() override;

  /// Throws InternalError for FP8 operands that no tensor core takes, CublasError where the library
  /// has no such product or fails.
  void run(const Product& call);

  /// Runs a product of codes. Returns false, with nothing computed, if the library refuses it now,
  /// after its heuristic had not, or has done so before: takes() says no from then on.
  bool run_codes(const Product& call);

  /// Runs a product with a bias. Returns false, with nothing computed, if the library does not add
  /// the bias, which is found out once for each kind of product.
  bool run_biased(const Product& call);

  /// By the library's heuristic, for pointers that are multiples of 16 bytes.
  bool takes(const Fp8Product& product, int64_t m, int64_t n, int64_t k) override;

  /// Memory for the operands of a dequantized product for which none was planned. It is held as
  /// long as the device, because recorded steps may use it, and larger memory is added to it.
  View unplanned_scratch(size_t bytes);

  /// Plans made from now on take the fastest algorithm, not the library's first (see GemmTuning).
  void tune(const std::filesystem::path& folder) { tuning_.emplace(*context_, folder); }

 private:
  std::unique_ptr<Plan> make_plan(const Product& call, const PlanKey& key);
  void refuse(const PlanKey& question, const CublasError& error);

  const CudaContext* context_;
  cublasLtHandle_t handle_ = nullptr;
  std::optional<GemmTuning> tuning_;
  // Null for a product whose bias the library refuses.
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
  std::map<PlanKey, bool> answers_;  // whether products of codes are taken, by question_of()
  std::set<PlanKey> warned_;         // questions without M that were refused
  std::vector<Buffer> unplanned_;    // the last one is the largest
};

/// Returns the plans of the device; the first call makes them.
GemmPlans& gemm_plans(CudaContext& context);

/// Returns Product::factors: the scales of both tensors, multiplied, and beta; null where there are
/// none.
const float* find_factors(Stream stream, const Gemm& call);

/// gemm() from operands that are decoded to 16 bits, without their tensors' scales, which come on
/// top of the sum: in `call.scratch`, or in memory of GemmPlans where that is empty.
void multiply_dequantized(Stream stream, const Gemm& call);

/// Returns the call with both operands' codes in `call.scratch`, and zeros behind them up to
/// GemmSupport::padded_k, which add nothing to the sum: the scales of the last blocks hold for them
/// too. Returns `call` where the product needs none.
Gemm with_padding(Stream stream, const Gemm& call, const GemmSupport& support);
/// Returns the call for multiply_dequantized() once the library has refused that of with_padding(),
/// whose scratch is too small for it.
Gemm after_padding(Gemm call, const GemmSupport& support);

/// `product`, which has no bias of its own, plus `bias` (fp32 [N], may be empty): added by the
/// library, rounded to the type of c, where it can; else by a pass of its own over c, whose result
/// is rounded a second time. Returns false, with nothing computed, if the library refuses a product
/// of codes.
bool multiply(Stream stream, Product product, const ConstView& bias);

}  // namespace fp8train::ops::cuda
