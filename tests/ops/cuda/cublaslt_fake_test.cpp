// The fake cuBLASLt refuses what the library refuses, one rule after the other. Only in the SHIM
// form.

#include <cublasLt.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cublaslt_fake.h"
#include "cuda_runtime_api.h"

namespace fp8train::test {
namespace {

constexpr auto kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
constexpr auto kRow = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
constexpr auto k1x128 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
constexpr auto k128x128 = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
constexpr auto k1x32 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;

/// A product in cuBLASLt's words that it takes; a test spoils one thing.
struct Call {
  int64_t m = 32, n = 32, k = 64;
  cudaDataType_t a_type = CUDA_R_8F_E4M3, b_type = CUDA_R_8F_E4M3, c_type = CUDA_R_32F;
  cublasOperation_t a_operation = CUBLAS_OP_T, b_operation = CUBLAS_OP_N;
  int32_t a_mode = kScalar, b_mode = kScalar;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1;
  size_t bias_shift = 0;
  size_t a_shift = 0, scale_shift = 0;  ///< bytes from an aligned address
  int capability = 90;
  uint8_t padding = 0;  ///< of 1x32 scales

  /// "success", or why not.
  std::string run() const;
};

/// Calls the library until it refuses.
class Steps {
 public:
  Steps& operator<<(cublasStatus_t status) {
    if (words_.empty() && status != CUBLAS_STATUS_SUCCESS) {
      words_ = cublasLtGetStatusString(status);
    }
    return *this;
  }
  bool good() const { return words_.empty(); }
  std::string words() const { return good() ? "success" : words_; }

 private:
  std::string words_;
};

struct alignas(256) Bytes {
  std::array<uint8_t, 16384> bytes;
};

std::string Call::run() const {
  shim::set_capability(capability);
  // Codes of 1.0; scales of 1 in fp32 or, where a mode wants it, in e8m0.
  const auto a = std::make_unique<Bytes>();
  const auto scales = std::make_unique<Bytes>();
  const auto c = std::make_unique<Bytes>();
  a->bytes.fill(a_type == CUDA_R_8F_E4M3 ? 0x38 : 0x3C);
  const bool mx = a_mode == k1x32;
  for (size_t i = 0; i < scales->bytes.size(); i += 4) {
    const float one = 1.0F;
    std::memcpy(scales->bytes.data() + i, &one, 4);
  }
  if (mx) {  // 32 rows at most and two blocks of K: rows of 16 bytes, of which two are scales
    scales->bytes.fill(padding);
    for (size_t row = 0; row < 32; ++row) {
      scales->bytes[row * 16] = scales->bytes[row * 16 + 1] = 127;
    }
  }
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  std::array<cublasLtMatrixLayout_t, 3> layouts = {};
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const void* scale = scales->bytes.data() + scale_shift;
  const float alpha = 1.0F;
  const float beta = 0.0F;
  const uint32_t alignment = a_shift == 0 ? 256 : 1;
  // Both operands lie in the same memory.
  const void* operand = a->bytes.data() + a_shift;
  Steps steps;
  steps << cublasLtCreate(&handle)
        << cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F)
        << cublasLtMatmulPreferenceCreate(&preference);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    steps << cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, a_operation);
  set(CUBLASLT_MATMUL_DESC_TRANSB, b_operation);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a_mode);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b_mode);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale);
  const auto bias = std::make_unique<Bytes>();
  bias->bytes.fill(0);
  const void* bias_start = bias->bytes.data() + bias_shift;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_start);
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
  const auto layout = [&](size_t which, cudaDataType_t type, int64_t rows, int64_t columns) {
    steps << cublasLtMatrixLayoutCreate(&layouts[which], type, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), rows);
  };
  layout(0, a_type, a_operation == CUBLAS_OP_T ? k : m, a_operation == CUBLAS_OP_T ? m : k);
  layout(1, b_type, b_operation == CUBLAS_OP_T ? n : k, b_operation == CUBLAS_OP_T ? k : n);
  layout(2, c_type, m, n);
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES}) {
    steps << cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof(alignment));
  }
  if (steps.good()) {
    steps << cublasLtMatmulAlgoGetHeuristic(handle, description, layouts[0], layouts[1], layouts[2],
                                            layouts[2], preference, 1, &result, &found);
  }
  if (steps.good()) {
    steps << cublasLtMatmul(handle, description, &alpha, operand, layouts[0], operand, layouts[1],
                            &beta, c->bytes.data(), layouts[2], c->bytes.data(), layouts[2],
                            &result.algo, scales.get(), 0, nullptr);
  }
  float first = 0.0F;
  std::memcpy(&first, c->bytes.data(), sizeof(first));
  if (steps.good() && c_type == CUDA_R_32F) {
    CHECK(first == static_cast<float>(k));
  }
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatmulDescDestroy(description);
  for (const cublasLtMatrixLayout_t each : layouts) {
    cublasLtMatrixLayoutDestroy(each);
  }
  cublasLtDestroy(handle);
  shim::set_capability(90);
  return steps.words();
}

TEST_CASE("the fake takes every mode on its chip", "[cuda][fake]") {
  for (const cudaDataType_t c_type : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F}) {
    CHECK(Call{.c_type = c_type, .capability = 89}.run() == "success");
    CHECK(Call{.b_type = CUDA_R_8F_E5M2, .c_type = CUDA_R_16F}.run() == "success");
    CHECK(Call{.c_type = c_type, .a_mode = kRow, .b_mode = kRow}.run() == "success");
    CHECK(Call{.c_type = c_type, .a_mode = k1x128, .b_mode = k1x128}.run() == "success");
    CHECK(Call{.c_type = c_type, .a_mode = k1x128, .b_mode = k128x128}.run() == "success");
    CHECK(Call{.c_type = c_type, .a_mode = k128x128, .b_mode = k1x128}.run() == "success");
    CHECK(Call{.c_type = c_type, .a_mode = k1x32, .b_mode = k1x32, .capability = 100}.run() ==
          "success");
  }
}

TEST_CASE("the fake refuses operands that no tensor core takes", "[cuda][fake]") {
  CHECK(Call{.a_operation = CUBLAS_OP_N}.run() == "FP8 operands must be TN");
  CHECK(Call{.b_operation = CUBLAS_OP_T}.run() == "FP8 operands must be TN");
  CHECK(Call{.k = 40}.run() == "K of an FP8 product must be a multiple of 16");
  CHECK(Call{.m = 34}.run() == "a column of the result must be a multiple of 16 bytes");
  CHECK(Call{.a_type = CUDA_R_8F_E5M2, .b_type = CUDA_R_8F_E5M2}.run() == "E5M2 times E5M2");
  CHECK(Call{.b_type = CUDA_R_16BF}.run() == "one FP8 or FP4 operand and one that is not");
  CHECK(Call{.c_type = CUDA_R_8F_E4M3}.run() == "an FP8 result is not asked for here");
  CHECK(Call{.a_shift = 8}.run() == "FP8 operands must be 16-byte aligned");
}

TEST_CASE("the fake refuses biases that break a rule", "[cuda][fake]") {
  constexpr uint32_t kBias = CUBLASLT_EPILOGUE_BIAS;
  CHECK(Call{.c_type = CUDA_R_16BF, .epilogue = kBias}.run() == "success");
  CHECK(Call{.c_type = CUDA_R_16BF, .epilogue = kBias, .bias_type = CUDA_R_16BF}.run() ==
        "success");
  CHECK(Call{.c_type = CUDA_R_16BF, .epilogue = kBias, .bias_type = CUDA_R_32F}.run() ==
        "a bias that is not of the type of D");
  CHECK(Call{.epilogue = kBias}.run() == "an fp32 result of FP8 operands takes no bias");
  CHECK(Call{.c_type = CUDA_R_16F, .epilogue = kBias, .bias_shift = 8}.run() ==
        "the bias is missing or not 16-byte aligned");
  CHECK(Call{.c_type = CUDA_R_16F, .epilogue = 2}.run() ==
        "an epilogue that the fake does not know");
}

TEST_CASE("the fake refuses scale modes that the chip lacks", "[cuda][fake]") {
  const std::string hopper_only = "row and 128-block scales are for compute capability 9.0";
  for (const int capability : {89, 100, 120}) {
    CHECK(Call{.a_mode = kRow, .b_mode = kRow, .capability = capability}.run() == hopper_only);
    CHECK(Call{.a_mode = k1x128, .b_mode = k128x128, .capability = capability}.run() ==
          hopper_only);
  }
  for (const int capability : {89, 90}) {
    CHECK(Call{.a_mode = k1x32, .b_mode = k1x32, .capability = capability}.run() ==
          "1x32 scales below compute capability 10.0");
  }
  CHECK(Call{.capability = 80}.run() == "FP8 below compute capability 8.9");
  CHECK(Call{.a_mode = 9, .b_mode = 9}.run() == "a scale mode that the fake does not know");
}

TEST_CASE("the fake refuses scales that break a rule of their mode", "[cuda][fake]") {
  CHECK(Call{.a_mode = k128x128, .b_mode = k128x128}.run() == "128x128 scales on both sides");
  CHECK(Call{.a_mode = kRow, .b_mode = k1x128}.run() == "scale modes that do not go together");
  CHECK(Call{.a_mode = kScalar, .b_mode = kRow}.run() == "scale modes that do not go together");
  CHECK(Call{.n = 18, .a_mode = k1x128, .b_mode = k1x128}.run() ==
        "M and N must be multiples of 4 with 128-block scales");
  CHECK(Call{.a_mode = kRow, .b_mode = kRow, .scale_shift = 4}.run() ==
        "scales must be 16-byte aligned");
  CHECK(Call{.k = 48, .a_mode = k1x32, .b_mode = k1x32, .capability = 100}.run() ==
        "K must be a multiple of 32 with scales of a byte");
  CHECK(Call{.a_mode = k1x32, .b_mode = k1x32, .capability = 100, .padding = 1}.run() ==
        "the padding of scales of a byte must be zero");
}

}  // namespace
}  // namespace fp8train::test
