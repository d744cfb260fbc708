#pragma once
// Which norms cuda casts in the pass that makes them.

#include "ops/norm/norm.h"

namespace fp8train::ops {

/// Rows of which a block of cuda has the codes in shared memory before it writes them transposed:
/// 16 bytes of a column.
constexpr int64_t kNormStripRows = 16;

/// Whether cuda casts the result of such a norm in the pass that makes it, if addresses are
/// aligned. Otherwise a second kernel makes the result again.
inline bool casts_in_one_pass(const NormForward& call) {
  constexpr int64_t kMaxWidth = 16384;                    // a team of 512 threads holds it
  constexpr int64_t kMaxSharedBytes = int64_t{96} << 10;  // every GPU has 99 KiB
  const QuantizedTensor& out = call.cast.out;
  const int64_t n = call.x.shape.back();
  const bool transposes = !out.columnwise.codes.empty();
  return !out.empty() && call.cast.statistics == nullptr && call.x.dtype == DType::bf16 &&
         call.y.dtype == DType::bf16 && n % 8 == 0 && n <= kMaxWidth &&
         (!transposes ||
          (call.x.shape.rows() % kNormStripRows == 0 && kNormStripRows * n <= kMaxSharedBytes));
}

}  // namespace fp8train::ops
