#pragma once
// Codes with zeros behind them, for a product that takes K in multiples.

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops::cuda {

/// Copies rows of codes to rows that are longer, with zeros behind them.
void pad_codes(Stream stream, const ConstView& from, const View& to);

}  // namespace fp8train::ops::cuda
