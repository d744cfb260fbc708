#pragma once
// Operands of products that tests of ops::gemm share.

#include <cmath>
#include <utility>
#include <vector>

#include "ops/gemm/gemm.h"
#include "ops/reference.h"

namespace fp8train::test {

/// Any matrix, op(a) [m, k] times op(b) [k, n].
struct Problem {
  int64_t m, n, k;
  DType a_type, b_type, c_type;
  bool a_transposed, b_transposed;
};

inline Array matrix(DType type, int64_t rows, int64_t columns, bool transposed,
                    const std::vector<float>& values) {
  return transposed ? Array(type, {columns, rows}, values) : Array(type, {rows, columns}, values);
}

/// Codes spread over the whole range of the format, subnormals included; values of order 1
/// otherwise.
inline std::vector<float> operand_values(DType type, int64_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed);
  const std::vector<float> exponents = random_values(count, seed + 100, 3.0F);
  for (size_t i = 0; is_fp8(type) && i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(std::lround(exponents[i])));
  }
  return values;
}

struct Operands {
  explicit Operands(const Problem& p)
      : problem(p),
        a(matrix(p.a_type, p.m, p.k, p.a_transposed, operand_values(p.a_type, p.m * p.k, 1))),
        b(matrix(p.b_type, p.k, p.n, p.b_transposed, operand_values(p.b_type, p.k * p.n, 2))),
        c(p.c_type, {p.m, p.n}, random_values(p.m * p.n, 3)),
        bias(DType::f32, {p.n}, random_values(p.n, 4)) {}

  double a_at(int64_t i, int64_t l) const {
    return a.get(problem.a_transposed ? l * problem.m + i : i * problem.k + l);
  }
  double b_at(int64_t l, int64_t j) const {
    return b.get(problem.b_transposed ? j * problem.k + l : l * problem.n + j);
  }
  ops::Gemm call() {
    return {.a = {a.view(), problem.a_transposed},
            .b = {b.view(), problem.b_transposed},
            .c = c,
            .beta = 0.0F,
            .bias = {}};
  }

  Problem problem;
  Array a, b, c, bias;
};

inline std::vector<std::pair<DType, DType>> operand_types() {
  std::vector<std::pair<DType, DType>> types = {{DType::f32, DType::f32}, {DType::f16, DType::f16}};
  for (const DType a : {DType::e4m3, DType::e5m2, DType::bf16}) {
    for (const DType b : {DType::e4m3, DType::e5m2, DType::bf16}) {
      types.emplace_back(a, b);
    }
  }
  return types;
}

}  // namespace fp8train::test
