#pragma once
// The lists behind is_wire_format(): all kernels of packets and all messages about wires take
// their types from PlainWireTypes and WireCodes (numeric/with_type.h), and their groups from here.

#include <string>

#include "numeric/with_type.h"

namespace fp8train::ops {

/// Elements that share a scale: a power of two, and as many elements for each lane of a warp.
inline constexpr int kWireGroups[] = {128, 256};

/// "fp32, bf16, e4m3 or e5m2 with a scale for the tensor, or ...": what gradients may cross in, by
/// packets and by sums under a shared scale (shared_wire.h), for messages.
std::string gradient_wires_text();

}  // namespace fp8train::ops
