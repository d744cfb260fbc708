#include "base/error.h"
#include "comm/exchange/gradient_exchange.h"
#include "ops/exchange/wire.h"
#include "ops/exchange/wire_formats.h"

namespace fp8train {

GradientWire gradient_wire(const TensorFormat& format, bool self_exact, const Topology& topology) {
  GradientWire wire;
  wire.format = format;
  wire.first_hop = format;
  wire.gather = plain(DType::bf16);
  wire.self_exact = self_exact;
  if (format == plain(DType::f32) || format == plain(DType::bf16)) {
    wire.kind = format.dtype == DType::f32 ? WireKind::fp32 : WireKind::bf16;
    wire.gather = format;
    return wire;
  }
  if (is_fp8(format.dtype) && format.block == per::tensor && format.is_scaled()) {
    wire.kind = WireKind::fp8_sum;
    wire.format.policy = ScalePolicy::current;  // a controller's factor comes with the bucket
    return wire;
  }
  if (!ops::is_wire_format(format)) {
    throw ConfigError("gradient_wire: '" + describe(format) +
                      "' does not cross between ranks; choose " + ops::gradient_wires_text());
  }
  const bool hops = topology.nodes() > 1 && topology.ranks_per_node() > 1 && !self_exact;
  wire.kind = hops ? WireKind::fp8_two_hop : WireKind::fp8_two_shot;
  return wire;
}

}  // namespace fp8train
