#pragma once
// Transposition of small tiles by shuffles within registers. Only for files compiled by
// fp8train_isa_sources.

#include <cstdint>
#include <utility>

#include "base/host_device.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

/// The elements of `a` and of `b` alternately, from number `First` on.
template <int First, typename Vector, int... I>
FP8TRAIN_HD Vector interleave(Vector a, Vector b, std::integer_sequence<int, I...> /*elements*/) {
  constexpr int kCount = sizeof...(I);
  return __builtin_shufflevector(a, b, (First + I / 2 + I % 2 * kCount)...);
}

/// Transposes 4 x 4 elements of 32 bits, 8 x 8 of 16 bits or 16 x 16 bytes; rows of `from` and `to`
/// are their strides apart. Each round interleaves a row of the upper half with that of the lower
/// half, and log2(rows) rounds are a transposition.
template <typename T>
FP8TRAIN_HD void transpose_block(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  typedef T Vector __attribute__((vector_size(16)));
  constexpr int kRows = 16 / sizeof(T);
  constexpr std::make_integer_sequence<int, kRows> kElements;
  Vector rows[kRows];
  for (int i = 0; i < kRows; ++i) {
    __builtin_memcpy(&rows[i], from + i * from_stride, sizeof(Vector));
  }
  for (int round = 1; round < kRows; round *= 2) {
    Vector mixed[kRows];
    for (int i = 0; i < kRows / 2; ++i) {
      mixed[2 * i] = interleave<0>(rows[i], rows[i + kRows / 2], kElements);
      mixed[2 * i + 1] = interleave<kRows / 2>(rows[i], rows[i + kRows / 2], kElements);
    }
    for (int i = 0; i < kRows; ++i) {
      rows[i] = mixed[i];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    __builtin_memcpy(to + i * to_stride, &rows[i], sizeof(Vector));
  }
}

/// to[column][row] = from[row][column], by blocks where there are whole ones.
template <typename T>
static __attribute__((noinline)) void transpose(const T* from, int64_t from_stride, int64_t rows,
                                                int64_t columns, T* to, int64_t to_stride) {
  constexpr int64_t kBlock = 16 / sizeof(T);
  const int64_t whole_rows = rows - rows % kBlock;
  const int64_t whole_columns = columns - columns % kBlock;
  for (int64_t row = 0; row < whole_rows; row += kBlock) {
    for (int64_t column = 0; column < whole_columns; column += kBlock) {
      transpose_block(from + row * from_stride + column, from_stride, to + column * to_stride + row,
                      to_stride);
    }
  }
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = column < whole_columns ? whole_rows : 0; row < rows; ++row) {
      to[column * to_stride + row] = from[row * from_stride + column];
    }
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
