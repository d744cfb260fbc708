#include "cublaslt_fake.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cublaslt_scales.h"
#include "numeric/convert.h"
#include "ops/cuda/cublaslt_api.h"
#include "submit.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t a_operation = CUBLAS_OP_N;
  cublasOperation_t b_operation = CUBLAS_OP_N;
  const void* a_scale = nullptr;
  const void* b_scale = nullptr;
  int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int32_t b_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int8_t fast_accumulate = 0;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, columns, stride;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

namespace {

using namespace fp8train::shim;  // NOLINT(google-build-using-namespace)

// The algorithms that are suggested, the favourite first, are numbered from 1. The third is the
// fastest, the fourth is suggested but does not run.
constexpr int kAlgorithms = 4;
constexpr float kMilliseconds[] = {0.0F, 2.0F, 3.0F, 1.0F, 0.0F};
constexpr uint64_t kRefusedAlgorithm = 4;

std::vector<int> algorithms_run;
uint64_t matmul_count = 0;
uint64_t heuristic_count = 0;
bool scales_are_ignored = false;
std::string refusal;

cublasStatus_t refuse(const char* why, cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED) {
  refusal = why;
  return status;
}

bool is_fp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

size_t bytes_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2;
}

/// The rules of the FP8 kernels (compute capability 8.9 and 9.0).
cublasStatus_t check_fp8(const cublasLtMatmulDescOpaque_t& description, cudaDataType_t a,
                         cudaDataType_t b, cudaDataType_t d, int64_t m, int64_t k) {
  if (!is_fp8(a) || !is_fp8(b)) {
    return refuse("one FP8 operand and one that is not");
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

cublasStatus_t check_types(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d) {
  if (c != d) {
    return refuse("C and D of different types");
  }
  if (is_fp8(a)) {
    return is_fp8(d) ? refuse("an FP8 result is not asked for here") : CUBLAS_STATUS_SUCCESS;
  }
  if (a != b) {
    return refuse("operands of different types");
  }
  const bool fits = d == a || d == CUDA_R_32F;
  return fits ? CUBLAS_STATUS_SUCCESS : refuse("no such result type for these operands");
}

float value_at(const void* data, cudaDataType_t type, int64_t index) {
  using namespace fp8train;
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint16_t wide = 0;
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[index];
    case CUDA_R_16BF:
      std::memcpy(&wide, bytes + 2 * index, 2);
      return decode(bf16{wide});
    case CUDA_R_16F:
      std::memcpy(&wide, bytes + 2 * index, 2);
      return decode(f16{wide});
    case CUDA_R_8F_E4M3:
      return decode(e4m3{bytes[index]});
    case CUDA_R_8F_E5M2:
      return decode(e5m2{bytes[index]});
  }
  return 0.0F;
}

void store_at(void* data, cudaDataType_t type, int64_t index, float value) {
  using namespace fp8train;
  switch (type) {
    case CUDA_R_16BF:
      return store_from_float(static_cast<bf16*>(data) + index, value);
    case CUDA_R_16F:
      return store_from_float(static_cast<f16*>(data) + index, value);
    default:
      static_cast<float*>(data)[index] = value;
  }
}

/// op(matrix) as vectors along K: [other, k].
std::vector<float> along_k(const void* data, const cublasLtMatrixLayoutOpaque_t& layout,
                           bool k_is_rows, int64_t other, int64_t k) {
  std::vector<float> values(static_cast<size_t>(other * k));
  for (int64_t i = 0; i < other; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      const int64_t index = k_is_rows ? l + i * layout.stride : i + l * layout.stride;
      values[static_cast<size_t>(i * k + l)] = value_at(data, layout.type, index);
    }
  }
  return values;
}

/// fp32 sums of `count` products.
float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 16;
  float sums[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) {
    sums[i % kLanes] += a[i] * b[i];
  }
  float total = 0.0F;
  for (const float sum : sums) {
    total += sum;
  }
  return total;
}

/// One element of the product: fp32 partial sums of what has one scale on both sides, scaled and
/// added in the order of K.
float scaled_dot(const float* a, const ScaledSide& a_side, int64_t row, const float* b,
                 const ScaledSide& b_side, int64_t column) {
  const int64_t k = a_side.k;
  const int64_t length = std::min(scaled_length(a_side), scaled_length(b_side));
  float sum = 0.0F;
  for (int64_t first = 0; first < k; first += length) {
    const float partial =
        dot(a + row * k + first, b + column * k + first, std::min(length, k - first));
    const float scale =
        scales_are_ignored ? 1.0F : scale_at(a_side, row, first) * scale_at(b_side, column, first);
    sum += partial * scale;
  }
  return sum;
}

template <typename Pointer>
struct Matrix {
  Pointer data;
  cublasLtMatrixLayoutOpaque_t layout;
};

/// The factors of a product: d = alpha a b + beta c.
struct Factors {
  float alpha, beta;
};

void multiply(const cublasLtMatmulDescOpaque_t& product, const Factors& factors,
              const Matrix<const void*>& a, const Matrix<const void*>& b, const void* c,
              const Matrix<void*>& d) {
  const int64_t m = d.layout.rows;
  const int64_t n = d.layout.columns;
  const bool a_transposed = product.a_operation == CUBLAS_OP_T;
  const int64_t k = a_transposed ? a.layout.rows : a.layout.columns;
  const std::vector<float> left = along_k(a.data, a.layout, a_transposed, m, k);
  const std::vector<float> right =
      along_k(b.data, b.layout, product.b_operation != CUBLAS_OP_T, n, k);
  const ScaledSide a_side = {product.a_mode, product.a_scale, m, k};
  const ScaledSide b_side = {product.b_mode, product.b_scale, n, k};
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < m; ++row) {
      const int64_t index = row + column * d.layout.stride;
      const float sum =
          factors.alpha * scaled_dot(left.data(), a_side, row, right.data(), b_side, column);
      store_at(d.data, d.layout.type, index,
               factors.beta == 0.0F ? sum : sum + factors.beta * value_at(c, d.layout.type, index));
    }
  }
  matmul_count += 1;
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
std::vector<int> take_algorithms() {
  return std::exchange(algorithms_run, {});
}
uint64_t heuristics_asked() {
  return heuristic_count;
}
void ignore_scales(bool ignored) {
  scales_are_ignored = ignored;
}

}  // namespace fp8train::shim

namespace fp8train::ops::cuda {

const CublasLtApi& cublaslt() {
  static const CublasLtApi api = {
      .get_version = cublasLtGetVersion,
      .get_status_string = cublasLtGetStatusString,
      .create = cublasLtCreate,
      .destroy = cublasLtDestroy,
      .matmul_desc_create = cublasLtMatmulDescCreate,
      .matmul_desc_destroy = cublasLtMatmulDescDestroy,
      .matmul_desc_set_attribute = cublasLtMatmulDescSetAttribute,
      .matrix_layout_create = cublasLtMatrixLayoutCreate,
      .matrix_layout_destroy = cublasLtMatrixLayoutDestroy,
      .matmul_preference_create = cublasLtMatmulPreferenceCreate,
      .matmul_preference_destroy = cublasLtMatmulPreferenceDestroy,
      .matmul_preference_set_attribute = cublasLtMatmulPreferenceSetAttribute,
      .matmul_algo_get_heuristic = cublasLtMatmulAlgoGetHeuristic,
      .matmul_algo_check = cublasLtMatmulAlgoCheck,
      .matmul = cublasLtMatmul};
  return api;
}

}  // namespace fp8train::ops::cuda

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
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return copy(description->fast_accumulate);
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
  if (is_fp8(a->type) || is_fp8(b->type)) {
    if (const cublasStatus_t status = check_fp8(*description, a->type, b->type, d->type, m, k)) {
      return status;
    }
    if (preference->alignment_a < 16 || preference->alignment_b < 16) {
      return refuse("FP8 operands must be 16-byte aligned");
    }
  }
  *found = std::min(wanted, kAlgorithms);
  for (int i = 0; i < *found; ++i) {
    // An algorithm remembers the alignments that it relies on, and which one it is.
    results[i] = {};
    results[i].algo = {{preference->alignment_a, preference->alignment_b, preference->alignment_d,
                        static_cast<uint64_t>(i) + 1}};
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
  return algorithm->data[3] >= 1 && algorithm->data[3] <= kAlgorithms
             ? CUBLAS_STATUS_SUCCESS
             : refuse("an algorithm of another library", CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t /*c_layout*/, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t /*workspace_bytes*/, cudaStream_t /*stream*/) {
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
  if (is_fp8(a_layout->type)) {
    if (const char* why = why_refused(a_side, b_side, capability())) {
      return refuse(why, CUBLAS_STATUS_INVALID_VALUE);
    }
  }
  if (algorithm->data[3] == kRefusedAlgorithm) {
    return refuse("a suggestion that does not run");
  }
  algorithms_run.push_back(static_cast<int>(algorithm->data[3]));
  fp8train::shim::advance_clock(kMilliseconds[algorithm->data[3]]);
  const Factors factors = {*static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  fp8train::shim::submit(
      [=, product = *description, left = *a_layout, right = *b_layout, result = *d_layout] {
        multiply(product, factors, {a, left}, {b, right}, c, {d, result});
      });
  return CUBLAS_STATUS_SUCCESS;
}
