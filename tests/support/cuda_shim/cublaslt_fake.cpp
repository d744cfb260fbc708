#include "cublaslt_fake.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cublaslt_faults.h"
#include "cublaslt_product.h"
#include "cublaslt_scales.h"
#include "submit.h"

struct cublasLtContext {};
struct cublasLtMatmulPreferenceOpaque_t {
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

namespace {

using namespace fp8train::shim;  // NOLINT(google-build-using-namespace)

// The algorithms that are suggested, the favourite first, are numbered from 1; the last one with a
// fault alone.
constexpr int kAlgorithms = 4;
constexpr float kMilliseconds[] = {0.0F, 2.0F, 3.0F, 1.0F, 0.0F, 2.0F};

thread_local std::vector<int> algorithms_run;
thread_local uint64_t matmul_count = 0;
thread_local uint64_t biased_count = 0;
thread_local uint64_t heuristic_count = 0;
bool biases_are_refused = false;
bool scales_are_ignored = false;
std::function<cublasStatus_t(const AskedProduct&)> answer_of_test;
thread_local std::string refusal;

cublasStatus_t refuse(const char* why, cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED) {
  refusal = why;
  return status;
}

bool is_fp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
bool is_code(cudaDataType_t type) {
  return is_fp8(type) || type == CUDA_R_4F_E2M1;
}

size_t bytes_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2;
}

/// The rules of the kernels that multiply codes.
cublasStatus_t check_codes(const cublasLtMatmulDescOpaque_t& description, cudaDataType_t a,
                           cudaDataType_t b, cudaDataType_t d, int64_t m, int64_t k) {
  if (is_fp8(a) != is_fp8(b) || is_code(a) != is_code(b)) {
    return refuse("one FP8 or FP4 operand and one that is not");
  }
  if (!is_fp8(a) &&
      (description.a_mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 || k % 32 != 0)) {
    return refuse("FP4 operands have 1x16 scales and a K that is a multiple of 32");
  }
  if (is_fp8(a) && description.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3) {
    return refuse("1x16 scales are of FP4 operands");
  }
  if (a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2) {
    return refuse("E5M2 times E5M2");
  }
  if (description.a_operation != CUBLAS_OP_T || description.b_operation != CUBLAS_OP_N) {
    return refuse("FP8 operands must be TN");
  }
  if (k % 16 != 0) {
    return refuse("K of an FP8 product must be a multiple of 16");
  }
  if (m * static_cast<int64_t>(bytes_of(d)) % 16 != 0) {
    return refuse("a column of the result must be a multiple of 16 bytes");
  }
  return CUBLAS_STATUS_SUCCESS;
}

/// The rules of a bias, which has an element for each row of D.
cublasStatus_t check_bias(const cublasLtMatmulDescOpaque_t& description, cudaDataType_t a,
                          cudaDataType_t d) {
  if (description.epilogue == CUBLASLT_EPILOGUE_DEFAULT) {
    return CUBLAS_STATUS_SUCCESS;
  }
  if (description.epilogue != CUBLASLT_EPILOGUE_BIAS) {
    return refuse("an epilogue that the fake does not know");
  }
  if (biases_are_refused) {
    return refuse("no biases today");
  }
  if (is_code(a) && d == CUDA_R_32F) {
    return refuse("an fp32 result of FP8 operands takes no bias");
  }
  if (description.bias_type != -1 && description.bias_type != d) {
    return refuse("a bias that is not of the type of D");
  }
  return description.bias == nullptr || reinterpret_cast<uintptr_t>(description.bias) % 16 != 0
             ? refuse("the bias is missing or not 16-byte aligned")
             : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_types(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d) {
  if (c != d) {
    return refuse("C and D of different types");
  }
  if (is_code(a)) {
    return is_code(d) ? refuse("an FP8 result is not asked for here") : CUBLAS_STATUS_SUCCESS;
  }
  if (a != b) {
    return refuse("operands of different types");
  }
  const bool fits = d == a || d == CUDA_R_32F;
  return fits ? CUBLAS_STATUS_SUCCESS : refuse("no such result type for these operands");
}

/// Of the chip that the shim is.
int capability() {
  int major = 0;
  int minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  return 10 * major + minor;
}

bool aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace

namespace fp8train::shim {

uint64_t matmuls() {
  return matmul_count;
}
uint64_t biased_matmuls() {
  return biased_count;
}
void refuse_biases(bool refused) {
  biases_are_refused = refused;
}
std::vector<int> take_algorithms() {
  return std::exchange(algorithms_run, {});
}
uint64_t heuristics_asked() {
  return heuristic_count;
}
void answer_products(std::function<cublasStatus_t(const AskedProduct&)> answer) {
  answer_of_test = std::move(answer);
}
void ignore_scales(bool ignored) {
  scales_are_ignored = ignored;
}

}  // namespace fp8train::shim

size_t cublasLtGetVersion() {
  return 130100;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : refusal.c_str();
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    return refuse("compute and scale type must be fp32", CUBLAS_STATUS_INVALID_VALUE);
  }
  *description = new cublasLtMatmulDescOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  const auto copy = [&](auto& to) {
    if (bytes != sizeof(to)) {
      return refuse("an attribute of the wrong size", CUBLAS_STATUS_INVALID_VALUE);
    }
    std::memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return copy(description->a_operation);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return copy(description->b_operation);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return copy(description->a_scale);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return copy(description->b_scale);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return copy(description->a_mode);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return copy(description->b_mode);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return copy(description->pointer_mode);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return copy(description->fast_accumulate);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return copy(description->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return copy(description->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return copy(description->bias_type);
    default:
      return refuse("an attribute that the fake does not know", CUBLAS_STATUS_INVALID_VALUE);
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) {
    return refuse("a leading dimension below the number of rows", CUBLAS_STATUS_INVALID_VALUE);
  }
  *layout = new cublasLtMatrixLayoutOpaque_t{type, static_cast<int64_t>(rows),
                                             static_cast<int64_t>(columns), stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  uint32_t* target = nullptr;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      target = &preference->alignment_a;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      target = &preference->alignment_b;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      target = &preference->alignment_c;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      target = &preference->alignment_d;
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      target = &preference->reductions;
      break;
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return bytes == sizeof(uint64_t)
                 ? CUBLAS_STATUS_SUCCESS
                 : refuse("a preference of the wrong size", CUBLAS_STATUS_INVALID_VALUE);
  }
  if (target == nullptr || bytes != sizeof(uint32_t)) {
    return refuse("a preference of the wrong size", CUBLAS_STATUS_INVALID_VALUE);
  }
  std::memcpy(target, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  heuristic_count += 1;
  *found = 0;
  const bool a_transposed = description->a_operation == CUBLAS_OP_T;
  const bool b_transposed = description->b_operation == CUBLAS_OP_T;
  const int64_t m = a_transposed ? a->columns : a->rows;
  const int64_t k = a_transposed ? a->rows : a->columns;
  const int64_t b_k = b_transposed ? b->columns : b->rows;
  const int64_t n = b_transposed ? b->rows : b->columns;
  if (k != b_k || d->rows != m || d->columns != n || c->rows != m || c->columns != n) {
    return refuse("shapes that do not fit", CUBLAS_STATUS_INVALID_VALUE);
  }
  if (const cublasStatus_t status = check_types(a->type, b->type, c->type, d->type)) {
    return status;
  }
  if (const cublasStatus_t status = check_bias(*description, a->type, d->type)) {
    return status;
  }
  if (is_code(a->type) || is_code(b->type)) {
    if (const cublasStatus_t status = check_codes(*description, a->type, b->type, d->type, m, k)) {
      return status;
    }
    if (preference->alignment_a < 16 || preference->alignment_b < 16) {
      return refuse("FP8 operands must be 16-byte aligned");
    }
    if (const char* why = why_faulty({description->a_mode, description->a_scale, m, k},
                                     {description->b_mode, description->b_scale, n, k})) {
      return refuse(why);
    }
  }
  *found = std::min(wanted, kAlgorithms);
  for (int i = 0; i < *found; ++i) {
    // An algorithm remembers the alignments that it relies on, and which one it is.
    results[i] = {};
    results[i].algo = {{preference->alignment_a, preference->alignment_b, preference->alignment_d,
                        static_cast<uint64_t>(i) + 1}};
  }
  if (faults().reduces_in_d && (preference->reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) {
    results[0].algo.data[3] = kReducesInD;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/,
                                       cublasLtMatmulDesc_t /*description*/,
                                       cublasLtMatrixLayout_t /*a*/, cublasLtMatrixLayout_t /*b*/,
                                       cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return algorithm->data[3] >= 1 && algorithm->data[3] <= kReducesInD
             ? CUBLAS_STATUS_SUCCESS
             : refuse("an algorithm of another library", CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t /*c_layout*/, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t /*workspace_bytes*/, cudaStream_t stream) {
  if (!aligned(a, algorithm->data[0]) || !aligned(b, algorithm->data[1]) ||
      !aligned(d, algorithm->data[2])) {
    return refuse("a pointer less aligned than its plan", CUBLAS_STATUS_INVALID_VALUE);
  }
  if (!aligned(workspace, 256)) {
    return refuse("the workspace must be 256-byte aligned", CUBLAS_STATUS_INVALID_VALUE);
  }
  const bool a_transposed = description->a_operation == CUBLAS_OP_T;
  const int64_t k = a_transposed ? a_layout->rows : a_layout->columns;
  const ScaledSide a_side = {description->a_mode, description->a_scale, d_layout->rows, k};
  const ScaledSide b_side = {description->b_mode, description->b_scale, d_layout->columns, k};
  if (is_code(a_layout->type)) {
    if (const char* why = why_refused(a_side, b_side, capability())) {
      return refuse(why, CUBLAS_STATUS_INVALID_VALUE);
    }
  }
  if (const cublasStatus_t status = check_bias(*description, a_layout->type, d_layout->type)) {
    return status;
  }
  if (answer_of_test) {
    const AskedProduct asked = {.m = d_layout->columns,
                                .n = d_layout->rows,
                                .k = k,
                                .a = b_layout->type,
                                .b = a_layout->type,
                                .c = d_layout->type,
                                .a_scales = description->b_mode,
                                .b_scales = description->a_mode,
                                .fast_accumulate = description->fast_accumulate != 0};
    if (const cublasStatus_t status = answer_of_test(asked)) {
      return refuse("refused by the test", status);
    }
  }
  if (algorithm->data[3] == kRefused) {
    return refuse("a suggestion that does not run");
  }
  algorithms_run.push_back(static_cast<int>(algorithm->data[3]));
  fp8train::shim::advance_clock(kMilliseconds[algorithm->data[3]]);
  // Factors in device memory are read when the product runs.
  const bool on_device = description->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  const float host_alpha = on_device ? 0.0F : *static_cast<const float*>(alpha);
  const float host_beta = on_device ? 0.0F : *static_cast<const float*>(beta);
  const Factors base = factors_of(algorithm->data[3], k, scales_are_ignored);
  fp8train::shim::submit(
      stream, [=, product = *description, left = *a_layout, right = *b_layout, result = *d_layout] {
        Factors factors = base;
        factors.alpha = on_device ? *static_cast<const float*>(alpha) : host_alpha;
        factors.beta = on_device ? *static_cast<const float*>(beta) : host_beta;
        multiply(product, factors, {a, left}, {b, right}, c, {d, result});
        matmul_count += 1;
        biased_count += product.epilogue == CUBLASLT_EPILOGUE_BIAS ? 1 : 0;
      });
  return CUBLAS_STATUS_SUCCESS;
}
