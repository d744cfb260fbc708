#pragma once
// cuBLASLt's description of one product, with the algorithm that was chosen for it. Only for
// GemmPlans.

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/gemm/cublaslt_api.h"
#include "ops/gemm/gemm_plans_cuda.h"

namespace fp8train::ops::cuda {

/// Throws CublasError unless the status is success.
void check_status(cublasStatus_t status, const std::string& what);

/// Handles of the library, destroyed also where making a plan fails half-way.
struct DestroyHandle {
  void operator()(cublasLtMatmulDesc_t description) const {
    cublaslt().matmul_desc_destroy(description);
  }
  void operator()(cublasLtMatrixLayout_t layout) const { cublaslt().matrix_layout_destroy(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublaslt().matmul_preference_destroy(preference);
  }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyHandle>;

/// cuBLASLt's description of one product; its handles live as long as the plan.
class Plan {
 public:
  /// `tuning` may be null.
  Plan(cublasLtHandle_t handle, const CudaContext& context, const Product& call, const PlanKey& key,
       GemmTuning* tuning);

  /// Submits the product. Returns what the library says of it.
  cublasStatus_t run(cublasLtHandle_t handle, const CudaContext& context,
                     const Product& call) const;

 private:
  void set(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) const {
    check_status(cublaslt().matmul_desc_set_attribute(description_.get(), attribute, value, bytes),
                 "describing a GEMM to cuBLASLt");
  }
  void set_scales(const Product& call) const;
  void set_bias(const Product& call) const {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call.bias.data, sizeof(call.bias.data));
  }
  /// The algorithms that the library suggests, its favourite first; at least one.
  std::vector<cublasLtMatmulAlgo_t> suggestions(cublasLtHandle_t handle, const CudaContext& context,
                                                const PlanKey& key) const;
  /// The algorithm that tuning has stored for the key, or the fastest suggestion, measured now.
  cublasLtMatmulAlgo_t fastest(cublasLtHandle_t handle, const CudaContext& context,
                               const Product& call, const PlanKey& key, GemmTuning& tuning);

  Owned<cublasLtMatmulDesc_t> description_;
  Owned<cublasLtMatrixLayout_t> a_;  // cuBLASLt's A: our b
  Owned<cublasLtMatrixLayout_t> b_;
  Owned<cublasLtMatrixLayout_t> c_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace fp8train::ops::cuda
