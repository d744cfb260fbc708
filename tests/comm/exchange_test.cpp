#include "comm/exchange/gradient_exchange.h"
#include "comm/wire_formats.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "device/device.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"
#include "ops/storage/storage.h"
#include "support/rank_threads.h"
#include "tensor/tensor.h"

namespace fp8train::test {
namespace {

constexpr int64_t kCount = 1000;

const TensorFormat kGrouped = encoded(per::group(128), ScaleType::f32);

using Values = std::vector<float>;

Values random_gradients(uint32_t seed, int64_t count = kCount) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(bits) * std::exp2(static_cast<float>(i / 64 % 11) - 20.0F);
  }
  return values;
}

/// What each rank has after the exchange of its gradients: bits of fp32.
std::vector<Values> exchange(const std::vector<Values>& gradients, const GradientWire& wire,
                             const Topology& topology, ExchangeResult result, float factor = 0) {
  std::vector<Values> results(gradients.size());
  const auto errors = run_ranks(topology, [&](Communicator& comm) {
    const auto device = make_device(DeviceKind::cpu);
    const Values& own = gradients[static_cast<size_t>(comm.rank())];
    const auto count = static_cast<int64_t>(own.size());
    Tensor bucket(*device, DType::f32, {count}, MemoryCategory::gradients);
    copy_from_host(*device, bucket, own.data());
    const auto made = make_gradient_exchange(comm, *device, wire,
                                             {.gradients = bucket.view(), .tensors = {0}}, result);
    const Buffer scratch(*device, made->scratch_bytes(), MemoryCategory::workspace);
    Tensor shard(*device, DType::f32, {made->own_elements()}, MemoryCategory::gradients);
    const bool whole = result == ExchangeResult::whole;
    made->start(device->stream(), scratch.data(),
                factor != 0 ? factor : 1.0F / static_cast<float>(comm.size()),
                whole ? View{} : shard.view());
    while (!made->advance()) {
    }
    results[static_cast<size_t>(comm.rank())] =
        to_host_f32(*device, whole ? bucket.view() : shard.view());
  });
  for (const std::string& error : errors) {
    CHECK(error == "");
  }
  return results;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A contribution as it is decoded: by the definition of a scale for each group.
Values decoded(const Values& values, bool pow2) {
  Values result = values;
  for (size_t begin = 0; begin < values.size(); begin += 128) {
    const size_t end = std::min(begin + 128, values.size());
    float amax = 0;
    for (size_t i = begin; i < end; ++i) {
      amax = std::max(amax, std::abs(values[i]));
    }
    float scale = amax == 0 ? 1.0F : 448.0F / amax;
    if (pow2 && amax != 0) {
      int exponent = 0;
      std::frexp(scale, &exponent);
      scale = std::ldexp(1.0F, exponent - 1);
    }
    for (size_t i = begin; i < end; ++i) {
      result[i] = decode(encode<e4m3>(values[i] * scale)) * (1.0F / scale);
    }
  }
  return result;
}

TEST_CASE("two-shot: the fp64 mean of the decoded contributions", "[exchange]") {
  for (const int ranks : {2, 3, 8}) {
    for (const bool pow2 : {false, true}) {
      std::vector<Values> gradients;
      std::vector<Values> contributions;
      for (int rank = 0; rank < ranks; ++rank) {
        gradients.push_back(random_gradients(static_cast<uint32_t>(rank) + 1));
        contributions.push_back(decoded(gradients.back(), pow2));
      }
      const Topology topology = Topology::blocks(ranks, ranks);
      const GradientWire wire = gradient_wire(
          encoded(per::group(128), pow2 ? ScaleType::pow2 : ScaleType::f32), false, topology);
      const auto shards = exchange(gradients, wire, topology, ExchangeResult::shard);
      Values all;
      for (const Values& shard : shards) {
        all.insert(all.end(), shard.begin(), shard.end());
      }
      REQUIRE(all.size() == static_cast<size_t>(kCount));
      for (size_t i = 0; i < all.size(); ++i) {
        double sum = 0;
        double magnitude = 0;
        for (const Values& contribution : contributions) {
          sum += static_cast<double>(contribution[i]);
          magnitude += std::abs(static_cast<double>(contribution[i]));
        }
        // A rounding to fp32 for each addition and for the factor.
        const double limit = magnitude / ranks * 0x1p-24 * (ranks + 1);
        REQUIRE(std::abs(all[i] - sum / ranks) <= limit);
      }
    }
  }
}

TEST_CASE("types without scales cross in themselves, codes are gathered in bf16", "[exchange]") {
  for (const int per_node : {1, 2, 4}) {
    const Topology topology = Topology::blocks(4, per_node);
    for (const DType type : PlainWireTypes::kTypes) {
      INFO(name_of(type) << ", " << per_node << " ranks of a node");
      const GradientWire wire = gradient_wire(plain(type), false, topology);
      CHECK(wire.kind == WireKind::plain);
      CHECK(wire.format == plain(type));
      CHECK(wire.gather == plain(type));
    }
    for (const DType type : WireCodes::kTypes) {
      TensorFormat format = kGrouped;
      format.dtype = type;
      const GradientWire wire = gradient_wire(format, false, topology);
      CHECK(wire.kind == (per_node == 2 ? WireKind::two_hop : WireKind::two_shot));
      CHECK(wire.format == format);
      CHECK(wire.gather == plain(DType::bf16));
    }
  }
}

TEST_CASE("permuting the ranks changes roundings of fp32 only", "[exchange]") {
  const Topology topology = Topology::blocks(4, 4);
  std::vector<Values> gradients;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    gradients.push_back(random_gradients(rank + 1));
  }
  const std::vector<Values> permuted = {gradients[2], gradients[0], gradients[3], gradients[1]};
  GradientWire wire = gradient_wire(kGrouped, false, topology);
  wire.gather = plain(DType::f32);
  const Values a = exchange(gradients, wire, topology, ExchangeResult::whole).front();
  const Values b = exchange(permuted, wire, topology, ExchangeResult::whole).front();
  for (size_t i = 0; i < a.size(); ++i) {
    double magnitude = 0;
    for (const Values& one : gradients) {
      magnitude += std::abs(static_cast<double>(one[i]));
    }
    REQUIRE(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <= magnitude * 0x1p-22);
  }
  const auto again = exchange(gradients, wire, topology, ExchangeResult::whole);
  for (const Values& other : again) {
    CHECK(same_bits(other, a));  // repeats, and is the same on all ranks
  }
}

TEST_CASE("two hops: mean of both, near that of one hop", "[exchange]") {
  const Topology topology = Topology::blocks(6, 2);
  std::vector<Values> gradients;
  for (uint32_t rank = 0; rank < 6; ++rank) {
    gradients.push_back(random_gradients(rank + 1));
  }
  const GradientWire wire = gradient_wire(kGrouped, false, topology);
  REQUIRE(wire.kind == WireKind::two_hop);
  // Independent: what a node's ranks have decoded is summed and crosses as one contribution.
  const int64_t chunk = 256;  // 1000 elements are 8 groups, two for each of the first four ranks
  Values expected(static_cast<size_t>(6 * chunk));
  for (size_t begin = 0; begin < expected.size(); begin += static_cast<size_t>(chunk)) {
    for (int node = 0; node < 3; ++node) {
      Values sum(static_cast<size_t>(chunk));
      for (int local = 0; local < 2; ++local) {
        Values padded = gradients[static_cast<size_t>(2 * node + local)];
        padded.resize(expected.size());
        const Values contribution = decoded(padded, false);
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] += contribution[begin + i];
        }
      }
      const Values crossed = decoded(sum, false);
      for (size_t i = 0; i < sum.size(); ++i) {
        expected[begin + i] += crossed[i];
      }
    }
  }
  const auto shards = exchange(gradients, wire, topology, ExchangeResult::shard, 1.0F);
  size_t at = 0;
  for (const Values& shard : shards) {
    for (const float value : shard) {
      REQUIRE(value == expected[at]);  // exact: the same sums in the same order
      ++at;
    }
  }
  CHECK(at == static_cast<size_t>(kCount));
}

TEST_CASE("one rank: the bits of storing and reading in the wire's format", "[exchange]") {
  const auto device = make_device(DeviceKind::cpu);
  const Topology alone;
  for (const TensorFormat& format :
       {plain(DType::f32), plain(DType::bf16), kGrouped, encoded(per::group(128), ScaleType::pow2),
        two_level_groups(), encoded(per::tensor, ScaleType::pow2),
        encoded(per::tensor, ScaleType::f32)}) {
    INFO(describe(format));
    const Values gradients = random_gradients(3);
    Tensor values(*device, DType::f32, {kCount}, MemoryCategory::workspace);
    copy_from_host(*device, values, gradients.data());
    Tensor codes(*device, format.dtype, {kCount}, MemoryCategory::workspace);
    Encoded packet(codes.view(), format, {});
    Tensor scales;
    if (format.is_scaled()) {
      scales =
          Tensor(*device, DType::f32, {stored_scales(format, kCount)}, MemoryCategory::workspace);
      fill_zero(*device, scales);
      packet.scales = scales;
    }
    ops::store(device->stream(), {.x = values, .to = packet});
    ops::read_stored(device->stream(), packet, values);
    const Values expected = to_host_f32(*device, values.view());
    const GradientWire wire = gradient_wire(format, false, alone);
    for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
      CHECK(same_bits(exchange({gradients}, wire, alone, result).front(), expected));
    }
    if (wire.kind != WireKind::code_sum) {
      const GradientWire exact = gradient_wire(format, true, alone);
      CHECK(
          same_bits(exchange({gradients}, exact, alone, ExchangeResult::whole).front(), gradients));
    }
  }
}

TEST_CASE("a value that is not finite poisons its group on all ranks", "[exchange]") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const int per_node : {4, 2}) {
      const Topology topology = Topology::blocks(4, per_node);
      for (const TensorFormat& format :
           {kGrouped, encoded(per::group(128), ScaleType::pow2), two_level_groups()}) {
        std::vector<Values> gradients(4, random_gradients(5));
        gradients[3][300] = bad;
        const GradientWire wire = gradient_wire(format, false, topology);
        for (const Values& mean : exchange(gradients, wire, topology, ExchangeResult::whole)) {
          for (size_t i = 0; i < mean.size(); ++i) {
            REQUIRE(std::isfinite(mean[i]) == (i < 256 || i >= 384));
          }
        }
      }
    }
  }
}

TEST_CASE("gradients stored as they cross the wire are not rounded again", "[exchange]") {
  const Topology topology = Topology::blocks(3, 3);
  std::vector<Values> contributions;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    contributions.push_back(decoded(random_gradients(rank + 1), false));
  }
  std::vector<Values> stored(3);
  const GradientWire wire = gradient_wire(kGrouped, false, topology);
  const auto errors = run_ranks(topology, [&](Communicator& comm) {
    const auto device = make_device(DeviceKind::cpu);
    const auto rank = static_cast<size_t>(comm.rank());
    Tensor x(*device, DType::f32, {kCount}, MemoryCategory::workspace);
    copy_from_host(*device, x, random_gradients(static_cast<uint32_t>(rank) + 1).data());
    Tensor codes(*device, DType::e4m3, {kCount}, MemoryCategory::gradients);
    Tensor scales(*device, DType::f32, {8}, MemoryCategory::gradients);
    const Encoded gradient(codes.view(), kGrouped, scales.view());
    ops::store(device->stream(), {.x = x, .to = gradient});
    const auto made = make_gradient_exchange(
        comm, *device, wire, {.gradients = gradient, .tensors = {}}, ExchangeResult::whole);
    const Buffer scratch(*device, made->scratch_bytes(), MemoryCategory::workspace);
    made->start(device->stream(), scratch.data(), 1.0F / 3);
    made->finish();
    ops::read_stored(device->stream(), gradient, x);
    stored[rank] = to_host_f32(*device, x.view());
  });
  CHECK(errors == std::vector<std::string>(3));
  Values mean(static_cast<size_t>(kCount));
  for (size_t i = 0; i < mean.size(); ++i) {
    mean[i] = (contributions[0][i] + contributions[1][i] + contributions[2][i]) * (1.0F / 3);
  }
  const Values expected = decoded(mean, false);
  for (const Values& one : stored) {
    CHECK(same_bits(one, expected));  // exact: the mean is rounded once, to be stored
  }
}

/// Two buckets; `eager` ranks go on with the first before they start the second.
Values two_at_once(Communicator& comm, bool eager) {
  const auto device = make_device(DeviceKind::cpu);
  const GradientWire wire = gradient_wire(kGrouped, false, comm.topology());
  std::vector<Tensor> buckets;
  std::vector<std::unique_ptr<GradientExchange>> exchanges;
  std::vector<Buffer> scratch;
  for (uint32_t i = 0; i < 2; ++i) {
    buckets.emplace_back(*device, DType::f32, Shape{kCount}, MemoryCategory::gradients);
    copy_from_host(*device, buckets[i],
                   random_gradients(static_cast<uint32_t>(comm.rank()) * 2 + i).data());
    exchanges.push_back(make_gradient_exchange(
        comm, *device, wire, GradientBucket{buckets[i].view(), {}}, ExchangeResult::whole));
    scratch.emplace_back(*device, exchanges[i]->scratch_bytes(), MemoryCategory::workspace);
  }
  exchanges[0]->start(device->stream(), scratch[0].data(), 1.0F);
  for (int i = 0; eager && i < 100 && !exchanges[0]->advance(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  exchanges[1]->start(device->stream(), scratch[1].data(), 1.0F);
  exchanges[0]->finish();
  exchanges[1]->finish();
  Values all = to_host_f32(*device, buckets[0].view());
  const Values more = to_host_f32(*device, buckets[1].view());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_CASE("exchanges under way do not depend on how far others are", "[exchange]") {
  for (const int per_node : {4, 2}) {
    std::vector<Values> mixed(4);
    std::vector<Values> alike(4);
    const auto errors = run_ranks(Topology::blocks(4, per_node), [&](Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      alike[rank] = two_at_once(comm, false);
      mixed[rank] = two_at_once(comm, comm.rank() % 2 == 0);
    });
    CHECK(errors == std::vector<std::string>(4));
    for (size_t rank = 0; rank < 4; ++rank) {
      CHECK(same_bits(mixed[rank], alike[0]));
    }
  }
}

TEST_CASE("gradients in bf16 are exchanged as they are", "[exchange]") {
  const Topology topology = Topology::blocks(4, 4);
  const GradientWire wire = gradient_wire(plain(DType::bf16), false, topology);
  for (const int64_t count : {512, 1000}) {  // gathered in the bucket itself, and next to it
    std::vector<Values> results(4);
    const auto errors = run_ranks(topology, [&](Communicator& comm) {
      const auto device = make_device(DeviceKind::cpu);
      Tensor bucket(*device, DType::bf16, {count}, MemoryCategory::gradients);
      const Values own = random_gradients(static_cast<uint32_t>(comm.rank()) + 1, count);
      for (size_t i = 0; i < own.size(); ++i) {
        bucket.view().as<bf16>()[i] = encode<bf16>(own[i]);
      }
      const auto made =
          make_gradient_exchange(comm, *device, wire, {bucket.view(), {}}, ExchangeResult::whole);
      const Buffer scratch(*device, made->scratch_bytes(), MemoryCategory::workspace);
      made->start(device->stream(), scratch.data(), 0.25F);
      made->finish();
      Values& mean = results[static_cast<size_t>(comm.rank())];
      for (int64_t i = 0; i < count; ++i) {
        mean.push_back(decode(bucket.view().as<bf16>()[i]));
      }
    });
    CHECK(errors == std::vector<std::string>(4));
    Values expected(static_cast<size_t>(count));
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const Values own = random_gradients(rank + 1, count);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += decode(encode<bf16>(own[i]));
      }
    }
    for (float& value : expected) {
      value = decode(encode<bf16>(value * 0.25F));
    }
    for (const Values& one : results) {
      CHECK(one == expected);  // exact
    }
  }
}

TEST_CASE("formats that cannot cross a wire are refused", "[exchange]") {
  TensorFormat half = kGrouped;
  half.dtype = DType::f16;
  CHECK_THROWS_AS(gradient_wire(half, false, Topology()), ConfigError);
  CHECK_THROWS_WITH(gradient_wire(plain(DType::i32), false, Topology()),
                    Catch::Contains("gradient_wire") && Catch::Contains("int32"));
}

}  // namespace
}  // namespace fp8train::test
