// An exchange in pieces against the same exchange at once: the same bits, in bounded memory. What
// the exchange at once has to give is the matter of exchange_test.cpp and shared_exchange_test.cpp.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "comm/backends/backends.h"
#include "comm/exchange/gradient_exchange.h"
#include "comm/wire_formats.h"
#include "device/device.h"
#include "ops/storage/storage.h"
#include "support/rank_threads.h"
#include "tensor/tensor.h"

namespace fp8train::test {
namespace {

using Bytes = std::vector<std::byte>;

/// What a rank has after an exchange, and what that took.
struct Outcome {
  Bytes bytes;
  int64_t pieces = 0;
  size_t scratch = 0;
  Traffic sent;
};

struct Case {
  TensorFormat format;
  TensorFormat stored;  ///< of the gradients
  Topology topology;
  ExchangeResult result = ExchangeResult::whole;
  bool self_exact = false;
  bool in_place = false;  ///< the shard is its own part of the gradients
  int64_t count = 0;
};

/// Magnitudes differ by element group, so that scales do, and so do ranks. `bad`: one value.
std::vector<float> gradients_of(int rank, int64_t count, float bad) {
  std::mt19937 bits(static_cast<uint32_t>(rank) + 21);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(bits) * std::exp2(static_cast<float>(i / 100 % 7) - 9.0F);
  }
  if (rank == 1) {
    values[values.size() / 2] = bad;
  }
  return values;
}

/// Three tensors, of which one crosses from shard to shard.
std::vector<int64_t> tensors_of(int64_t count) {
  return {0, 128, 128 * (count / 256 + 1)};
}

void append(Bytes& bytes, Device& device, const View& view) {
  if (!view.empty() && view.count() > 0) {
    const size_t before = bytes.size();
    bytes.resize(before + view.bytes());
    copy_to_host(device, bytes.data() + before, view);
  }
}

/// The gradients of a rank, stored as the case says.
struct Stored {
  Stored(Device& device, const Case& c, const std::vector<float>& values)
      : codes(device, c.stored.dtype, {c.count}, MemoryCategory::gradients) {
    const std::vector<int64_t> begins = tensors_of(c.count);
    const bool by_tensor = c.stored.is_scaled() && c.stored.block == per::tensor;
    if (c.stored.is_scaled()) {
      const Shape shape = by_tensor ? Shape{3, 2} : Shape{stored_scales(c.stored, c.count)};
      scales = Tensor(device, DType::f32, shape, MemoryCategory::gradients);
      fill_zero(device, scales);
    }
    all = Encoded(codes.view(), c.stored, scales.view());
    Tensor x(device, DType::f32, {c.count}, MemoryCategory::workspace);
    copy_from_host(device, x, values.data());
    if (!by_tensor) {
      ops::store(device.stream(), {.x = x, .to = all});
      return;
    }
    for (size_t t = 0; t < begins.size(); ++t) {
      const int64_t elements = (t + 1 < begins.size() ? begins[t + 1] : c.count) - begins[t];
      const View from = {x.view().as<float>() + begins[t], DType::f32, {elements}};
      const View to = {codes.view().as<uint8_t>() + begins[t], c.stored.dtype, {elements}};
      const View scale = {scales.view().as<float>() + 2 * t, DType::f32, {2}};
      ops::store(device.stream(), {.x = from, .to = {to, c.stored, scale}});
    }
  }

  Tensor codes, scales;
  Encoded all;
};

Outcome exchange(Communicator& comm, const Case& c, int64_t piece_bytes, float bad) {
  const auto device = make_device(DeviceKind::cpu);
  Stored stored(*device, c, gradients_of(comm.rank(), c.count, bad));
  const GradientWire wire = gradient_wire(c.format, c.self_exact, comm.topology());
  const bool names = wire.kind == WireKind::code_sum;
  const auto made = make_gradient_exchange(
      comm, *device, wire,
      {stored.all, names ? tensors_of(c.count) : std::vector<int64_t>(), piece_bytes}, c.result);
  Outcome outcome = {{}, made->pieces(), made->scratch_bytes(), {}};
  const Buffer scratch(*device, made->scratch_bytes(), MemoryCategory::workspace);
  Tensor own(*device, DType::f32, {made->own_elements()}, MemoryCategory::gradients);
  View shard;
  if (c.result == ExchangeResult::shard) {
    shard = own;
    if (c.in_place && made->own_elements() > 0) {
      shard.data = stored.codes.view().as<float>() + comm.rank() * made->shard_elements();
    }
  }
  const float factor = 1.0F / static_cast<float>(comm.size());
  const Traffic before = comm.traffic();
  for (int step = 0; step < 2; ++step) {  // what one leaves behind is not in the next one's way
    made->start(device->stream(), scratch.data(), factor, shard);
    made->advance();
    made->finish();
  }
  outcome.sent = {comm.traffic().within_node - before.within_node,
                  comm.traffic().between_nodes - before.between_nodes};
  append(outcome.bytes, *device, shard.empty() ? stored.codes.view() : shard);
  append(outcome.bytes, *device, shard.empty() ? stored.scales.view() : View{});
  return outcome;
}

std::vector<Outcome> exchange_all(const Case& c, int64_t piece_bytes, float bad) {
  std::vector<Outcome> outcomes(static_cast<size_t>(c.topology.size()));
  const auto errors = run_ranks(c.topology, [&](Communicator& comm) {
    outcomes[static_cast<size_t>(comm.rank())] = exchange(comm, c, piece_bytes, bad);
  });
  CHECK(errors == std::vector<std::string>(outcomes.size()));
  return outcomes;
}

void check_pieces(const Case& c, float bad = 1.0F) {
  const std::vector<Outcome> at_once = exchange_all(c, 0, bad);
  CHECK(at_once[0].pieces == 1);
  const auto bytes = [&](int64_t count) {
    return static_cast<int64_t>(storage_bytes(c.stored.dtype, {count}));
  };
  const int64_t least = bytes(128) * c.topology.size();
  for (const int64_t piece_bytes : {int64_t{1}, 2 * least + 4, bytes(c.count) - 1}) {
    CAPTURE(piece_bytes);
    const std::vector<Outcome> in_pieces = exchange_all(c, piece_bytes, bad);
    for (size_t rank = 0; rank < in_pieces.size(); ++rank) {
      CAPTURE(rank);
      CHECK(in_pieces[rank].bytes == at_once[rank].bytes);  // exact
      // Packets are padded to 16 bytes: of 128 codes with a byte for the scale, 144 for 129.
      const auto sent = static_cast<double>(at_once[rank].sent.total());
      CHECK(static_cast<double>(in_pieces[rank].sent.total()) == Approx(sent).epsilon(0.12));
    }
    CHECK(in_pieces[0].pieces * piece_bytes + in_pieces[0].pieces * least >= bytes(c.count));
  }
}

std::vector<Topology> topologies() {
  return {Topology::blocks(2, 2), Topology::blocks(3, 3), Topology::blocks(4, 4),
          Topology::blocks(4, 2)};
}

const TensorFormat kGrouped = encoded(per::group(128), ScaleType::f32);
const TensorFormat kPowers = encoded(per::group(128), ScaleType::pow2);
const TensorFormat kByTensor = encoded(per::tensor, ScaleType::pow2);

// 40 groups, of which the last is not full; and so few that the last ranks have none.
const int64_t kCounts[] = {5000, 700};

TEST_CASE("pieces have the bits of one exchange, on every wire", "[exchange][pieces]") {
  for (const TensorFormat& format :
       {plain(DType::f32), plain(DType::bf16), kGrouped, kPowers, two_level_groups(), kByTensor}) {
    for (const Topology& topology : topologies()) {
      for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
        for (const int64_t count : kCounts) {
          INFO(describe(format) << ", " << topology.size() << " ranks, " << count << " elements");
          check_pieces({.format = format, .topology = topology, .result = result, .count = count});
        }
      }
    }
  }
}

TEST_CASE("pieces of gradients in few bits", "[exchange][pieces]") {
  struct Formats {
    TensorFormat format, stored;
  };
  const Formats formats[] = {{plain(DType::bf16), plain(DType::bf16)},
                             {kGrouped, plain(DType::bf16)},
                             {kGrouped, kGrouped},
                             {kPowers, kPowers},
                             {two_level_groups(), plain(DType::f32)},
                             {two_level_groups(), two_level_groups()},
                             {kByTensor, kByTensor}};
  for (const Formats& f : formats) {
    for (const Topology& topology : topologies()) {
      for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
        INFO(describe(f.stored) << " as " << describe(f.format) << ", " << topology.size()
                                << " ranks");
        check_pieces({.format = f.format,
                      .stored = f.stored,
                      .topology = topology,
                      .result = result,
                      .count = 5000});
      }
    }
  }
}

TEST_CASE("pieces leave a rank's own part exact where that is asked for", "[exchange][pieces]") {
  for (const TensorFormat& format : {plain(DType::bf16), kGrouped}) {
    for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
      for (const bool in_place : {false, true}) {
        INFO(describe(format));
        check_pieces({.format = format,
                      .topology = Topology::blocks(3, 3),
                      .result = result,
                      .self_exact = true,
                      .in_place = in_place,
                      .count = 5000});
      }
    }
  }
}

TEST_CASE("what is not finite spoils no more in pieces", "[exchange][pieces]") {
  for (const TensorFormat& format : {kGrouped, kPowers, two_level_groups(), kByTensor}) {
    for (const TensorFormat& stored : {plain(DType::f32), format}) {
      INFO(describe(format));
      check_pieces(
          {.format = format, .stored = stored, .topology = Topology::blocks(4, 2), .count = 5000},
          std::numeric_limits<float>::infinity());
    }
  }
}

TEST_CASE("memory of an exchange is that of a piece", "[exchange][pieces]") {
  const auto device = make_meta_device({});
  constexpr int64_t kMany = int64_t{1} << 28;  // 1 GiB of fp32
  constexpr int64_t kPiece = int64_t{25} << 20;
  for (const TensorFormat& format : {plain(DType::f32), plain(DType::bf16), kGrouped, kByTensor}) {
    for (const int per_node : {8, 64}) {
      for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
        INFO(describe(format) << ", nodes of " << per_node);
        const auto comm = make_dry_run(Topology::blocks(64, per_node), 5);
        const Tensor bucket(*device, DType::f32, {kMany}, MemoryCategory::gradients);
        const auto made =
            make_gradient_exchange(*comm, *device, gradient_wire(format, false, comm->topology()),
                                   {bucket.view(), {0}, kPiece}, result);
        // Sent and received, and fp32 sums of one node's part.
        CHECK(static_cast<double>(made->scratch_bytes()) <= 2.2 * kPiece);
        CHECK(made->pieces() >= kMany * 4 / kPiece);
        CHECK(made->pieces() <= kMany * 4 / kPiece + 2);
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
