#pragma once
// The operations behind quantize() and dequantize() (ops/cast/quantize.h) where blocks have scales.
// Those check their arguments and choose one of these from the table of operations; no other code
// calls them.

#include "ops/cast/quantize.h"

namespace fp8train::ops {

/// A scale for each block, or for each row of a square.
void quantize_blocks(Stream stream, ConstView x, const QuantizedTensor& out, float* amax,
                     QuantizeStatistics* statistics, CastStep step);
void dequantize_blocks(Stream stream, const Encoded& x, View y);

/// Casts as above, with codes in e2m1.
void quantize_fp4(Stream stream, ConstView x, const QuantizedTensor& out, float* amax,
                  QuantizeStatistics* statistics, const CastOptions& options);
void dequantize_fp4(Stream stream, const Encoded& x, View y);

}  // namespace fp8train::ops
