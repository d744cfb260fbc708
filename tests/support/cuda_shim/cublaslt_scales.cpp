#include "cublaslt_scales.h"

#include <cmath>
#include <initializer_list>

#include "numeric/convert.h"
#include "submit.h"

namespace fp8train::shim {
namespace {

constexpr int64_t kBlock = 128;
constexpr int64_t kMxBlock = 32;
constexpr int64_t kNvBlock = 16;

int64_t ceil_div(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}
int64_t padded(int64_t count, int64_t multiple) {
  return ceil_div(count, multiple) * multiple;
}

bool is_128(int32_t mode) {
  return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
         mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

/// Elements that share a scale of a byte; 0 for other modes.
int64_t tiled_length(int32_t mode) {
  return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0   ? kMxBlock
         : mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 ? kNvBlock
                                                            : 0;
}

/// Tiles of 128 rows by 4 scales, 512 bytes each, side by side along K; within one, rows r, r + 32,
/// r + 64 and r + 96 share 16 bytes.
int64_t tiled_offset(const ScaledSide& side, int64_t row, int64_t block) {
  const int64_t tiles_across = ceil_div(ceil_div(side.k, tiled_length(side.mode)), 4);
  const int64_t tile = row / 128 * tiles_across + block / 4;
  const int64_t inner_row = row % 128;
  return tile * 512 + inner_row % 32 * 16 + inner_row / 32 * 4 + block % 4;
}

/// Whether the bytes around scales of a byte are zero.
bool tiled_padding_is_zero(const ScaledSide& side) {
  const auto* bytes = static_cast<const uint8_t*>(side.scales);
  const int64_t blocks = ceil_div(side.k, tiled_length(side.mode));
  for (int64_t row = 0; row < padded(side.rows, 128); ++row) {
    for (int64_t block = 0; block < padded(blocks, 4); ++block) {
      const bool outside = row >= side.rows || block >= blocks;
      if (outside && bytes[tiled_offset(side, row, block)] != 0) {
        return false;
      }
    }
  }
  return true;
}

const char* why_missing(int32_t mode, int capability) {
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
      return capability >= 89 ? nullptr : "FP8 below compute capability 8.9";
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
      return capability >= 100 ? nullptr : "1x32 scales below compute capability 10.0";
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3:
      return capability >= 100 ? nullptr : "1x16 scales below compute capability 10.0";
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return capability == 90 ? nullptr : "row and 128-block scales are for compute capability 9.0";
    default:
      return "a scale mode that the fake does not know";
  }
}

const char* why_shape_refused(const ScaledSide& side) {
  if (side.mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) {
    if (side.scales == nullptr) {
      return "no scales";
    }
    if (reinterpret_cast<uintptr_t>(side.scales) % 16 != 0) {
      return "scales must be 16-byte aligned";
    }
  }
  if (is_128(side.mode) && side.rows % 4 != 0) {
    return "M and N must be multiples of 4 with 128-block scales";
  }
  if (tiled_length(side.mode) != 0) {
    if (side.k % 32 != 0) {
      return "K must be a multiple of 32 with scales of a byte";
    }
    if (!capturing() && !tiled_padding_is_zero(side)) {
      return "the padding of scales of a byte must be zero";
    }
  }
  return nullptr;
}

}  // namespace

const char* why_refused(const ScaledSide& a, const ScaledSide& b, int capability) {
  for (const ScaledSide* side : {&a, &b}) {
    if (const char* why = why_missing(side->mode, capability)) {
      return why;
    }
  }
  if (a.mode != b.mode && !(is_128(a.mode) && is_128(b.mode))) {
    return "scale modes that do not go together";
  }
  if (a.mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && a.mode == b.mode) {
    return "128x128 scales on both sides";
  }
  const char* why = why_shape_refused(a);
  return why != nullptr ? why : why_shape_refused(b);
}

int64_t scaled_length(const ScaledSide& side) {
  const int64_t tiled = tiled_length(side.mode);
  return is_128(side.mode) ? kBlock : tiled != 0 ? tiled : side.k;
}

float scale_at(const ScaledSide& side, int64_t row, int64_t k) {
  const auto* floats = static_cast<const float*>(side.scales);
  switch (side.mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
      return floats[row];
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:  // a column of scales for each block of K
      return floats[k / kBlock * side.rows + row];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: {  // a padded run along K for 128 rows
      const int64_t run = padded(ceil_div(side.k, kBlock), 4);
      return floats[row / 128 * run + k / kBlock];
    }
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {
      const uint8_t exponent =
          static_cast<const uint8_t*>(side.scales)[tiled_offset(side, row, k / kMxBlock)];
      return exponent == 0xFF ? NAN : std::ldexp(1.0F, exponent - 127);
    }
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3:
      return decode(
          e4m3{static_cast<const uint8_t*>(side.scales)[tiled_offset(side, row, k / kNvBlock)]});
    default:
      return floats == nullptr ? 1.0F : *floats;
  }
}

}  // namespace fp8train::shim
