#pragma once
// Products whose result is known to the last bit, at the shapes of a model: for `bench products
// --verify`. Operands are whole numbers, casts have scales that are powers of two, and the sums
// stay below 2^13, so that nothing is rounded on the way, whatever the order of the sums: in fp32
// as in the 14 bits of Hopper's FP8 products (ops/gemm/short_accumulator.h). Only the result is
// rounded, once. The truth is computed on the host from the numbers themselves, in fp32 without an
// error, and so knows no defect of a library, a cast or a layout of scales.

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "device/device.h"
#include "ops/gemm/gemm.h"
#include "tensor/view.h"

namespace fp8train {

/// A matrix [rows, columns] of whole numbers: 0, 1 and 3 of either sign, times powers of two up to
/// 8 that differ from row to row and from block to block, so that scales do too. The longer K, the
/// more zeros.
class ExactMatrix {
 public:
  ExactMatrix(int64_t rows, int64_t columns, int64_t k, uint64_t seed);
  /// Writes the matrix, row after row, into bf16 memory of a device.
  void fill(Device& device, const View& matrix) const;
  /// The element at an index into that memory.
  float at(int64_t index) const;
  /// Appends the bf16 elements of a row.
  void append_row(int64_t row, std::vector<uint16_t>& to) const;

 private:
  /// 128 elements of a row from `column`, a multiple of 128; fewer count at its end.
  const uint16_t* chunk(int64_t row, int64_t column) const;

  int64_t rows_, columns_;
  uint64_t seed_;
  const std::vector<uint16_t>* patterns_;  // what rows repeat, times 1, 2 and 4
};

/// c[m, n] = a[m, k] b[n, k]^T of such matrices.
class ExactProduct {
 public:
  explicit ExactProduct(const GemmShape& shape);

  const ExactMatrix& a() const { return a_; }
  const ExactMatrix& b() const { return b_; }

  /// Runs a product of those matrices, in any format that holds them exactly, once, on a c of NaN,
  /// or for beta = 1 of threes. Returns the error of the result against the truth rounded to its
  /// type, relative in the Frobenius norm, on 32 rows and 128 columns that are spread over all, the
  /// first and the last among them. Plain operands may be views of the same memory in other shapes.
  double error(Device& device, const ops::Gemm& call);

  /// The largest error() that a result of this type may have. Exact sums leave 0. For fp32 2^-16 is
  /// allowed, and for bf16 one unit, 2^-8, in one of 256 elements. K without 16 of 8192 elements is
  /// off by 0.04, and split-K whose parts are added in bf16 by 10^-3.
  static double bound(DType result);

 private:
  const std::vector<float>& truth(const ops::Gemm& call);

  GemmShape shape_;
  ExactMatrix a_, b_;
  std::vector<int64_t> sampled_rows_, sampled_columns_;
  // By whether a and b are transposed: [rows, columns] of what is sampled.
  std::map<std::pair<bool, bool>, std::vector<float>> truths_;
};

}  // namespace fp8train
