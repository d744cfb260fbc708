#include "base/key_error.h"
#include "comm/exchange/gradient_exchange.h"
#include "ops/exchange/wire.h"
#include "ops/exchange/wire_formats.h"

namespace fp8train {

GradientWire gradient_wire(const TensorFormat& format, bool self_exact, const Topology& topology,
                           int shard_ranks) {
  GradientWire wire;
  wire.format = format;
  wire.first_hop = format;
  wire.gather = plain(DType::bf16);
  wire.self_exact = self_exact;
  if (is_fp8(format.dtype) && format.block == per::tensor && format.is_scaled()) {
    wire.kind = WireKind::code_sum;
    wire.format.policy = ScalePolicy::current;  // a controller's factor comes with the bucket
    return wire;
  }
  if (!ops::is_wire_format(format)) {
    throw KeyError("precision.gradient_wire", ": '" + describe(format) +
                                                  "' does not cross between ranks; choose " +
                                                  ops::gradient_wires_text());
  }
  const int of_node = topology.ranks_per_node();
  const bool in_groups = shard_ranks > 0 && shard_ranks < topology.size();
  const bool hops =
      topology.nodes() > 1 && of_node > 1 && !self_exact && (!in_groups || shard_ranks == of_node);
  if (!format.is_scaled()) {
    wire.kind =
        hops && in_groups && format.dtype == DType::bf16 ? WireKind::two_hop : WireKind::plain;
    wire.gather = format;
    return wire;
  }
  wire.kind = hops ? WireKind::two_hop : WireKind::two_shot;
  return wire;
}

}  // namespace fp8train
