#pragma once
// The formats of Codec::two_level: one for each struct of numeric/codec.h's AllGroupScales. They
// are stored from one step to the next, and exchanged.

#include <string>
#include <vector>

#include "tensor/tensor_format.h"

namespace fp8train {

const std::vector<TensorFormat>& level_formats();
bool is_level_format(const TensorFormat& format);

/// "'e2m1 group(128) current e4m3'", for messages.
std::string level_formats_text();

/// Returns the bytes of the scales of a group. Tensors have scales for whole kRangeAlignment.
int64_t level_scale_bytes(const TensorFormat& format);

}  // namespace fp8train
