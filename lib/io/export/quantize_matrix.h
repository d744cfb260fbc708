#pragma once
// One matrix in host memory, cast with a scale for the tensor or for each block of it by the
// operations of ops/cast/quantize.h on the cpu, with statistics of the cast. Synchronous.

#include <cstdint>
#include <vector>

#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"

namespace fp8train {

/// The key of the random bits of stochastic rounding (numeric/rounding.h); the step is 0.
struct StochasticKey {
  uint64_t seed = 0;
  uint64_t tensor = 0;
};

/// How a cast changed the values of a tensor.
struct CastQuality {
  float amax = 0.0F;  ///< NaN where a value is
  ops::QuantizeStatistics statistics = {};
  uint64_t not_a_number = 0;  ///< values; of no account in what follows
  uint64_t infinite = 0;      ///< likewise
  double signal = 0.0;        ///< sum of x^2
  double noise = 0.0;  ///< sum of (x - code * reciprocal scale)^2; a finite x that is read back as
                       ///< NaN counts as if it were read as 0

  /// Returns 10 log10(signal / noise): infinite where nothing was lost, NaN where there is no
  /// signal.
  double snr_db() const;
  /// Adds the quality of another part of the same tensor.
  CastQuality& operator+=(const CastQuality& other);
};

/// The result of a cast.
struct QuantizedMatrix {
  std::vector<uint8_t> codes;   ///< of 4 bits: packed by rows, the lower half of a byte first
  std::vector<uint8_t> scales;  ///< in the type of the format's scales: what codes are multiplied
                                ///< by; blocks in row-major order
  float tensor_scale = 1.0F;    ///< of two levels: what values were multiplied by
  CastQuality quality;
};

/// Returns the blocks of a matrix [rows, columns] that share a scale.
inline ops::ScaleGrid matrix_blocks(ScaleBlock block, int64_t rows, int64_t columns) {
  return ops::scale_grid(block, rows, columns, ScaleLayout::row_major);
}

/// Casts x, [rows, columns] of fp32, bf16 or fp16, not empty (InternalError). Scales are the same
/// for both roundings: those of ops::compute_current_scale and ops::quantize. Stochastic rounding
/// numbers elements row by row; with e2m1 the rows are as long as whole blocks are.
QuantizedMatrix quantize_matrix(Stream cpu, ConstView x, const TensorFormat& format,
                                const StochasticKey& key);

/// y = codes * (scales * (1 / tensor_scale)), in fp32, bf16 or fp16 and of the shape that was
/// cast. `matrix` is only read (views of operands are those of memory that may be written).
void dequantize_matrix(Stream cpu, QuantizedMatrix& matrix, const TensorFormat& format, View y);

}  // namespace fp8train
