#pragma once
// Transposition of small tiles by shuffles within registers. Only for files compiled by
// fp8train_isa_sources.

#include <cstdint>

#include "base/host_device.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

typedef float Quad __attribute__((vector_size(16)));
typedef uint16_t Vec8 __attribute__((vector_size(16)));
typedef uint8_t Sixteen __attribute__((vector_size(16)));

/// Transposes four by four elements; rows of `from` and `to` are their strides apart.
FP8TRAIN_HD void transpose_block(const float* from, int64_t from_stride, float* to,
                                 int64_t to_stride) {
  Quad in[4];
  for (int i = 0; i < 4; ++i) {
    __builtin_memcpy(&in[i], from + i * from_stride, sizeof(Quad));
  }
  const Quad low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
  const Quad high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Quad low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
  const Quad high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  const Quad out[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                       __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                       __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                       __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) {
    __builtin_memcpy(to + i * to_stride, &out[i], sizeof(Quad));
  }
}

/// Eight by eight: each round interleaves row i with row i + 4, and three rounds are a
/// transposition.
FP8TRAIN_HD void transpose_block(const uint16_t* from, int64_t from_stride, uint16_t* to,
                                 int64_t to_stride) {
  Vec8 rows[8];
  for (int i = 0; i < 8; ++i) {
    __builtin_memcpy(&rows[i], from + i * from_stride, sizeof(Vec8));
  }
  for (int round = 0; round < 3; ++round) {
    Vec8 mixed[8];
    for (int i = 0; i < 4; ++i) {
      mixed[2 * i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      mixed[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) {
      rows[i] = mixed[i];
    }
  }
  for (int i = 0; i < 8; ++i) {
    __builtin_memcpy(to + i * to_stride, &rows[i], sizeof(Vec8));
  }
}

/// Sixteen by sixteen, likewise in four rounds.
FP8TRAIN_HD void transpose_block(const uint8_t* from, int64_t from_stride, uint8_t* to,
                                 int64_t to_stride) {
  Sixteen rows[16];
  for (int i = 0; i < 16; ++i) {
    __builtin_memcpy(&rows[i], from + i * from_stride, sizeof(Sixteen));
  }
  for (int round = 0; round < 4; ++round) {
    Sixteen mixed[16];
    for (int i = 0; i < 8; ++i) {
      mixed[2 * i] = __builtin_shufflevector(rows[i], rows[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4,
                                             20, 5, 21, 6, 22, 7, 23);
      mixed[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 8], 8, 24, 9, 25, 10, 26, 11, 27,
                                                 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < 16; ++i) {
      rows[i] = mixed[i];
    }
  }
  for (int i = 0; i < 16; ++i) {
    __builtin_memcpy(to + i * to_stride, &rows[i], sizeof(Sixteen));
  }
}

/// to[column][row] = from[row][column]; rows and columns are multiples of the block: 4 for fp32, 8
/// for 16 bits, 16 for bytes.
template <typename T>
static __attribute__((noinline)) void transpose(const T* from, int64_t from_stride, int64_t rows,
                                                int64_t columns, T* to, int64_t to_stride) {
  constexpr int64_t kBlock = 16 / sizeof(T);
  for (int64_t row = 0; row < rows; row += kBlock) {
    for (int64_t column = 0; column < columns; column += kBlock) {
      transpose_block(from + row * from_stride + column, from_stride, to + column * to_stride + row,
                      to_stride);
    }
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
