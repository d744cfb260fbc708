#include "ops/gemm/gemm_plans_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/log.h"
#include "device/device.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kHeuristics = 16;  // algorithms asked for; the first, or the fastest, is taken

void check_status(cublasStatus_t status, const std::string& what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CublasError(what + ": " + cublaslt().get_status_string(status), status);
  }
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    case DType::e2m1:
      return CUDA_R_4F_E2M1;
    case DType::e8m0:
    case DType::i8:
    case DType::u8:
    case DType::u16:
    case DType::i32:
    case DType::i64:
    case DType::f64:
      break;
  }
  throw InternalError("gemm: no such operand type on cuda");
}

/// The largest power of two up to 256 that divides the address: what an algorithm may rely on.
uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

PlanKey key_of(const Product& call) {
  return {.m = call.c.shape[0],
          .n = call.c.shape[1],
          .k = call.a.matrix.shape[call.a.transposed ? 0 : 1],
          .a = call.a.matrix.dtype,
          .b = call.b.matrix.dtype,
          .c = call.c.dtype,
          .a_block = call.a.block,
          .b_block = call.b.block,
          .a_transposed = call.a.transposed,
          .b_transposed = call.b.transposed,
          .a_scaled = call.a.scales != nullptr,
          .b_scaled = call.b.scales != nullptr,
          .add = call.beta != 0.0F,
          .biased = !call.bias.empty(),
          .factors_on_device = call.factors != nullptr,
          .fast_accumulate = call.fast_accumulate,
          .a_alignment = alignment_of(call.a.matrix.data),
          .b_alignment = alignment_of(call.b.matrix.data),
          .c_alignment = alignment_of(call.c.data)};
}

/// A product of codes reads both operands along K, 16 bytes at a time. gemm_support() has said that
/// their types go together.
void check_codes(const PlanKey& key) {
  check(is_code_type(key.b) && (key.a == DType::e2m1) == (key.b == DType::e2m1),
        "gemm: on cuda both operands are FP8, or e2m1, or neither");
  check(!key.a_transposed && key.b_transposed,
        "gemm: FP8 operands on cuda lie with K contiguous; use the transposed codes");
  check(bytes_of_rows(key.a, 1, key.k) % 16 == 0,
        "gemm: on cuda rows of codes are multiples of 16 bytes");
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

/// Handles of the library, given back also where making a plan fails half-way.
struct GiveBack {
  void operator()(cublasLtMatmulDesc_t description) const {
    cublaslt().matmul_desc_destroy(description);
  }
  void operator()(cublasLtMatrixLayout_t layout) const { cublaslt().matrix_layout_destroy(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublaslt().matmul_preference_destroy(preference);
  }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, GiveBack>;

Owned<cublasLtMatrixLayout_t> layout_of(const ConstView& stored) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_status(cublaslt().matrix_layout_create(
                   &layout, data_type(stored.dtype), static_cast<uint64_t>(stored.shape[1]),
                   static_cast<uint64_t>(stored.shape[0]), stored.shape[1]),
               "describing a matrix to cuBLASLt");
  return Owned<cublasLtMatrixLayout_t>(layout);
}

}  // namespace

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
  /// What the library suggests, its favourite first; at least one.
  std::vector<cublasLtMatmulAlgo_t> suggestions(cublasLtHandle_t handle, const CudaContext& context,
                                                const PlanKey& key) const;
  /// What tuning has stored for the key, or the fastest suggestion, measured now.
  cublasLtMatmulAlgo_t fastest(cublasLtHandle_t handle, const CudaContext& context,
                               const Product& call, const PlanKey& key, GemmTuning& tuning);

  Owned<cublasLtMatmulDesc_t> description_;
  Owned<cublasLtMatrixLayout_t> a_;  // cuBLASLt's A: our b
  Owned<cublasLtMatrixLayout_t> b_;
  Owned<cublasLtMatrixLayout_t> c_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

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
    return candidates[tuning.choose(name, candidates, [&](const cublasLtMatmulAlgo_t& algorithm) {
      algorithm_ = algorithm;
      return run(handle, context, trial) == CUBLAS_STATUS_SUCCESS;
    })];
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

GemmPlans::GemmPlans() {
  check_status(cublaslt().create(&handle_), "starting cuBLASLt");
}

GemmPlans::~GemmPlans() {
  plans_.clear();
  cublaslt().destroy(handle_);
}

void GemmPlans::run(const CudaContext& context, const Product& call) {
  const PlanKey key = key_of(call);
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan == nullptr) {
    plan = make_plan(context, call, key);
  }
  check_status(plan->run(handle_, context, call), "cublasLtMatmul");
}

bool GemmPlans::run_biased(const CudaContext& context, const Product& call) {
  const PlanKey key = key_of(call);
  const auto [entry, is_new] = plans_.try_emplace(key);
  std::unique_ptr<Plan>& plan = entry->second;
  if (!is_new) {
    if (plan != nullptr) {
      check_status(plan->run(handle_, context, call), "cublasLtMatmul");
    }
    return plan != nullptr;
  }
  // The library may suggest what it then refuses: only a product that has run counts.
  try {
    std::unique_ptr<Plan> tried = make_plan(context, call, key);
    check_status(tried->run(handle_, context, call), "cublasLtMatmul");
    plan = std::move(tried);
  } catch (const DeviceError& error) {
    log_warning(std::string("a bias is added by a kernel of its own: ") + error.what());
  }
  return plan != nullptr;
}

std::unique_ptr<Plan> GemmPlans::make_plan(const CudaContext& context, const Product& call,
                                           const PlanKey& key) {
  if (is_code_type(key.a) || is_code_type(key.b)) {
    check_codes(key);
  }
  return std::make_unique<Plan>(handle_, context, call, key, tuning_ ? &*tuning_ : nullptr);
}

GemmPlans& gemm_plans(CudaContext& context) {
  if (context.gemm == nullptr) {
    context.gemm = std::make_unique<GemmPlans>();
  }
  return static_cast<GemmPlans&>(*context.gemm);
}

}  // namespace fp8train::ops::cuda
