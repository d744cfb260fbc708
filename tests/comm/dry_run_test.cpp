// Wire bytes of every wire against a table made by hand, in bytes
// per parameter, times (N - 1) / N.

#include <catch2/catch.hpp>

#include "comm/backends/backends.h"
#include "comm/exchange/gradient_exchange.h"
#include "comm/wire_formats.h"
#include "device/device.h"
#include "ops/exchange/wire.h"
#include "tensor/tensor.h"

namespace fp8train::test {
namespace {

constexpr int64_t kParameters = int64_t{1} << 26;

/// What rank 5 sends to exchange the gradients of a model that is not there.
Traffic sent(const GradientWire& wire, const Topology& topology, ExchangeResult result) {
  const auto device = make_meta_device({});
  const auto comm = make_dry_run(topology, 5);
  Tensor bucket(*device, DType::f32, {kParameters}, MemoryCategory::gradients);
  const auto exchange = make_gradient_exchange(
      *comm, *device, wire, {.gradients = bucket.view(), .tensors = {0}}, result);
  const Buffer scratch(*device, exchange->scratch_bytes(), MemoryCategory::workspace);
  Tensor shard(*device, DType::f32, {exchange->own_elements()}, MemoryCategory::gradients);
  exchange->start(device->stream(), scratch.data(), 1.0F,
                  result == ExchangeResult::shard ? shard.view() : View{});
  exchange->finish();
  return comm->traffic();
}

double per_parameter(const GradientWire& wire, int ranks, ExchangeResult result) {
  const double share = static_cast<double>(ranks - 1) / ranks * kParameters;
  const Topology topology = Topology::blocks(ranks, 8);
  return static_cast<double>(sent(wire, topology, result).total()) / share;
}

TEST_CASE("wire bytes are those of the table", "[dry_run]") {
  const TensorFormat grouped = encoded(per::group(128), ScaleType::f32);
  const TensorFormat powers = encoded(per::group(128), ScaleType::pow2);
  struct Row {
    TensorFormat format;
    TensorFormat gather;
    double shard, whole;
  };
  const Row rows[] = {
      {plain(DType::f32), plain(DType::f32), 4, 8},
      {plain(DType::bf16), plain(DType::bf16), 2, 4},
      {encoded(per::tensor, ScaleType::pow2), plain(DType::bf16), 1, 2},
      {grouped, grouped, 1.031, 2.06},
      {grouped, plain(DType::bf16), 1.031, 3.03},
      {powers, powers, 1.008, 2.016},
  };
  for (const int ranks : {8, 64, 1024}) {
    for (const Row& row : rows) {
      GradientWire wire = gradient_wire(row.format, false, Topology::blocks(ranks, ranks));
      wire.gather = row.gather;
      INFO(describe(row.format) << ", means in " << describe(row.gather) << ", " << ranks
                                << " ranks");
      CHECK(per_parameter(wire, ranks, ExchangeResult::shard) == Approx(row.shard).epsilon(0.01));
      CHECK(per_parameter(wire, ranks, ExchangeResult::whole) == Approx(row.whole).epsilon(0.01));
    }
  }
}

TEST_CASE("two hops send little between nodes", "[dry_run]") {
  const Topology topology = Topology::blocks(64, 8);
  const GradientWire wire =
      gradient_wire(encoded(per::group(128), ScaleType::f32), false, topology);
  CHECK(wire.kind == WireKind::two_hop);
  const Traffic traffic = sent(wire, topology, ExchangeResult::shard);
  const auto all = static_cast<double>(kParameters);
  // Of its node's eighth, each of the other 7 nodes gets its part; 7 of 8 stay within the node.
  CHECK(static_cast<double>(traffic.between_nodes) ==
        Approx(1.031 * all / 8 * 7 / 8).epsilon(0.01));
  CHECK(static_cast<double>(traffic.within_node) == Approx(1.031 * all * 7 / 8).epsilon(0.01));
  GradientWire flat = wire;
  flat.kind = WireKind::two_shot;
  const Traffic without = sent(flat, topology, ExchangeResult::shard);
  CHECK(static_cast<double>(without.between_nodes) == Approx(1.031 * all * 56 / 64).epsilon(0.01));
}

TEST_CASE("a dry run leaves zeros where others would have written", "[dry_run]") {
  const auto comm = make_dry_run(Topology::blocks(4, 2), 2);
  CHECK(comm->all_gather_values(7) == std::vector<int>{0, 0, 7, 0});
  CHECK(comm->local_rank() == 0);
  CHECK(comm->node() == 1);
  CHECK(comm->peer_group()->size() == 2);
  CHECK(comm->traffic() == Traffic{8, 4});
}

TEST_CASE("a dry run computes nothing and its memory is that of a run", "[dry_run]") {
  const TensorFormat format = encoded(per::group(128), ScaleType::f32);
  const auto comm = make_dry_run(Topology::blocks(8, 8), 0);
  const auto device = make_meta_device({});
  Tensor bucket(*device, DType::f32, {kParameters}, MemoryCategory::gradients);
  const auto exchange =
      make_gradient_exchange(*comm, *device, gradient_wire(format, false, comm->topology()),
                             {.gradients = bucket.view(), .tensors = {}}, ExchangeResult::shard);
  const auto packet = static_cast<size_t>(ops::wire_bytes(format, kParameters / 8));
  CHECK(exchange->scratch_bytes() == 16 * packet + kParameters / 8 * sizeof(float));
  CHECK(exchange->shard_elements() == kParameters / 8);
}

}  // namespace
}  // namespace fp8train::test
