#include "cublaslt_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cublaslt_scales.h"
#include "numeric/convert.h"

namespace fp8train::shim {
namespace {

float value_at(const void* data, cudaDataType_t type, int64_t index) {
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
    case CUDA_R_4F_E2M1:  // the first of two in the lower half of a byte
      return decode(e2m1{static_cast<uint8_t>(bytes[index / 2] >> index % 2 * 4 & 0xF)});
  }
  return 0.0F;
}

void store_at(void* data, cudaDataType_t type, int64_t index, float value) {
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

/// Elements of K from `begin` on, before `end`.
struct PartOfK {
  int64_t begin, end;
};

/// One element of the product: fp32 partial sums of what has one scale on both sides, scaled and
/// added in the order of K.
float scaled_dot(const float* a, const ScaledSide& a_side, int64_t row, const float* b,
                 const ScaledSide& b_side, int64_t column, bool scales_are_ignored, PartOfK part) {
  const int64_t k = a_side.k;
  const int64_t length = std::min(scaled_length(a_side), scaled_length(b_side));
  float sum = 0.0F;
  for (int64_t first = part.begin; first < part.end; first += length) {
    const float partial =
        dot(a + row * k + first, b + column * k + first, std::min(length, part.end - first));
    const float scale =
        scales_are_ignored ? 1.0F : scale_at(a_side, row, first) * scale_at(b_side, column, first);
    sum += partial * scale;
  }
  return sum;
}

float rounded_to(cudaDataType_t type, float value) {
  float memory = 0.0F;
  store_at(&memory, type, 0, value);
  return value_at(&memory, type, 0);
}

}  // namespace

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
  const bool biased = product.epilogue == CUBLASLT_EPILOGUE_BIAS;
  const int64_t k_read = factors.k_read;
  const int64_t part_length = factors.parts == 1 ? k_read : (k_read / factors.parts / 16 + 1) * 16;
  const ScaledSide a_side = {product.a_mode, product.a_scale, m, k};
  const ScaledSide b_side = {product.b_mode, product.b_scale, n, k};
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < m; ++row) {
      const int64_t index = row + column * d.layout.stride;
      float sum = 0.0F;
      for (int64_t begin = 0; begin < k_read; begin += part_length) {
        const float part =
            scaled_dot(left.data(), a_side, row, right.data(), b_side, column,
                       factors.scales_are_ignored, {begin, std::min(begin + part_length, k_read)});
        sum = factors.parts == 1 ? part : rounded_to(d.layout.type, sum + part);
      }
      sum *= factors.alpha;
      const float added =
          factors.beta == 0.0F ? sum : sum + factors.beta * value_at(c, d.layout.type, index);
      store_at(d.data, d.layout.type, index,
               biased ? added + value_at(product.bias, d.layout.type, row) : added);
    }
  }
}

}  // namespace fp8train::shim
