#include "ops/gemm/cublaslt_plan.h"

#include <fmt/format.h>

#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "device/device.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kHeuristics = 16;  // algorithms asked for; the first, or the fastest, is taken

cudaDataType_t data_type(DType dtype) {
  static constexpr std::pair<DType, cudaDataType_t> kTypes[] = {
      {DType::f32, CUDA_R_32F},      {DType::bf16, CUDA_R_16BF},    {DType::f16, CUDA_R_16F},
      {DType::e4m3, CUDA_R_8F_E4M3}, {DType::e5m2, CUDA_R_8F_E5M2}, {DType::e2m1, CUDA_R_4F_E2M1}};
  const auto* const found =
      std::ranges::find(kTypes, dtype, &std::pair<DType, cudaDataType_t>::first);
  check(found != std::end(kTypes), "gemm: no such operand type on cuda");
  return found->second;
}

struct ScaleMode {
  ScaleBlock block;
  cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
};
constexpr ScaleMode kScaleModes[] = {
    {per::tensor, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F},
    {per::row, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F},
    {per::block_1x128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F},
    {per::block_128x128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F},
    {per::block_1x32, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0},
    {per::block_1x16, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3}};

cublasLtMatmulMatrixScale_t scale_mode(ScaleBlock block) {
  for (const ScaleMode& each : kScaleModes) {
    if (each.block == block) {
      return each.mode;
    }
  }
  throw InternalError("gemm: no such scales on cuda");
}

/// All of the key, for the file of GemmTuning.
std::string text_of(const PlanKey& key) {
  return fmt::format("{}x{}x{} {}{}{} {}{}{} {}{}{}{}{} {},{} {}/{}/{}", key.m, key.n, key.k,
                     name_of(key.a), key.a_transposed ? "^T" : "", key.a_scaled ? "*s" : "",
                     name_of(key.b), key.b_transposed ? "^T" : "", key.b_scaled ? "*s" : "",
                     name_of(key.c), key.add ? "+" : "", key.biased ? " bias" : "",
                     key.fast_accumulate ? " fast" : "", key.factors_on_device ? " scaled" : "",
                     name_of(key.a_block), name_of(key.b_block), key.a_alignment, key.b_alignment,
                     key.c_alignment);
}

Owned<cublasLtMatrixLayout_t> layout_of(const ConstView& stored) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_status(cublaslt().matrix_layout_create(
                   &layout, data_type(stored.dtype), static_cast<uint64_t>(stored.shape[1]),
                   static_cast<uint64_t>(stored.shape[0]), stored.shape[1]),
               "describing a matrix to cuBLASLt");
  return Owned<cublasLtMatrixLayout_t>(layout);
}

}  // namespace

void check_status(cublasStatus_t status, const std::string& what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CublasError(what + ": " + cublaslt().get_status_string(status), status);
  }
}

Plan::Plan(cublasLtHandle_t handle, const CudaContext& context, const Product& call,
           const PlanKey& key, GemmTuning* tuning) {
  cublasLtMatmulDesc_t description = nullptr;
  check_status(cublaslt().matmul_desc_create(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "describing a GEMM to cuBLASLt");
  description_.reset(description);
  const cublasOperation_t a_operation = key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t b_operation = key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, &a_operation, sizeof(a_operation));
  set(CUBLASLT_MATMUL_DESC_TRANSB, &b_operation, sizeof(b_operation));
  if (key.factors_on_device) {
    const int32_t mode = CUBLASLT_POINTER_MODE_DEVICE;
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof(mode));
  }
  if (is_code_type(key.a)) {
    const int8_t fast = key.fast_accumulate ? 1 : 0;
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
    const auto a_mode = static_cast<int32_t>(scale_mode(key.b_block));
    const auto b_mode = static_cast<int32_t>(scale_mode(key.a_block));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &a_mode, sizeof(a_mode));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &b_mode, sizeof(b_mode));
    set_scales(call);
  }
  if (key.biased) {
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const auto type = static_cast<int32_t>(data_type(key.c));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
    set_bias(call);
  }
  a_ = layout_of(call.b.matrix);
  b_ = layout_of(call.a.matrix);
  c_ = layout_of(call.c);
  algorithm_ = tuning == nullptr ? suggestions(handle, context, key).front()
                                 : fastest(handle, context, call, key, *tuning);
}

void Plan::set_scales(const Product& call) const {
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &call.b.scales, sizeof(call.b.scales));
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &call.a.scales, sizeof(call.a.scales));
}

std::vector<cublasLtMatmulAlgo_t> Plan::suggestions(cublasLtHandle_t handle,
                                                    const CudaContext& context,
                                                    const PlanKey& key) const {
  const CublasLtApi& api = cublaslt();
  cublasLtMatmulPreference_t made = nullptr;
  check_status(api.matmul_preference_create(&made), "asking cuBLASLt for an algorithm");
  const Owned<cublasLtMatmulPreference_t> preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_status(
        api.matmul_preference_set_attribute(preference.get(), attribute, &value, sizeof(value)),
        "asking cuBLASLt for an algorithm");
  };
  const uint64_t workspace = context.workspace_bytes - kReservedBytes;
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);
  // Partial sums of split-K are added in fp32. By default the library may add them in the type of
  // the result (OUTPUT_TYPE and INPLACE), which for bf16 loses half of its digits where they cancel
  // (PyTorch #153095).
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  cublasLtMatmulHeuristicResult_t results[kHeuristics] = {};
  int found = 0;
  const cublasStatus_t status =
      api.matmul_algo_get_heuristic(handle, description_.get(), a_.get(), b_.get(), c_.get(),
                                    c_.get(), preference.get(), kHeuristics, results, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
    throw CublasError(
        fmt::format("cuBLASLt has no GEMM of {} x {} x {} in {} x {} to {} on this GPU ({})", key.m,
                    key.n, key.k, name_of(key.a), name_of(key.b), name_of(key.c),
                    cublaslt().get_status_string(status)),
        status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status);
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) {
      algorithms.push_back(results[i].algo);
    }
  }
  if (algorithms.empty()) {
    throw CublasError("cuBLASLt suggests algorithms that it refuses", CUBLAS_STATUS_NOT_SUPPORTED);
  }
  return algorithms;
}

cublasLtMatmulAlgo_t Plan::fastest(cublasLtHandle_t handle, const CudaContext& context,
                                   const Product& call, const PlanKey& key, GemmTuning& tuning) {
  const std::string name = text_of(key);
  if (const auto stored = tuning.find(name)) {
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status = cublaslt().matmul_algo_check(
        handle, description_.get(), a_.get(), b_.get(), c_.get(), c_.get(), &*stored, &result);
    if (status == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= context.workspace_bytes - kReservedBytes) {
      return *stored;
    }
  }
  const std::vector<cublasLtMatmulAlgo_t> candidates = suggestions(handle, context, key);
  try {
    // A result of its own: products that add to c must not do so more than once.
    const Buffer result(*context.owner, call.c.bytes(), MemoryCategory::workspace);
    context.owner->fill_zero(result.data(), result.bytes());
    Product trial = call;
    trial.c.data = result.data();
    const auto try_algorithm = [&](const cublasLtMatmulAlgo_t& algorithm) {
      algorithm_ = algorithm;
      return run(handle, context, trial) == CUBLAS_STATUS_SUCCESS;
    };
    const std::optional<size_t> best =
        tuning.choose({.key = name,
                       .run = try_algorithm,
                       .result = trial.c,
                       .bound = difference_bound(key.a, key.c, key.fast_accumulate, key.k)},
                      candidates);
    return candidates[best.value_or(0)];  // where none runs, the product is refused when it runs
  } catch (const DeviceError& error) {
    log_warning(std::string("gemm_tuning: ") + error.what() + "; the library's first choice runs");
    return candidates.front();
  }
}

cublasStatus_t Plan::run(cublasLtHandle_t handle, const CudaContext& context,
                         const Product& call) const {
  if (is_code_type(call.a.matrix.dtype)) {
    set_scales(call);
  }
  if (!call.bias.empty()) {
    set_bias(call);
  }
  const float one = 1.0F;
  const float* const alpha = call.factors == nullptr ? &one : call.factors;
  const float* const beta = call.factors == nullptr ? &call.beta : call.factors + 1;
  return cublaslt().matmul(handle, description_.get(), alpha, call.b.matrix.data, a_.get(),
                           call.a.matrix.data, b_.get(), beta, call.c.data, c_.get(), call.c.data,
                           c_.get(), &algorithm_,
                           static_cast<char*>(context.workspace) + kReservedBytes,
                           context.workspace_bytes - kReservedBytes, context.stream);
}

}  // namespace fp8train::ops::cuda
