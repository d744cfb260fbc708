// code_sum against the method written down with single codes.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "comm/backends/backends.h"
#include "comm/exchange/gradient_exchange.h"
#include "device/device.h"
#include "numeric/convert.h"
#include "ops/storage/storage.h"
#include "support/rank_threads.h"
#include "tensor/tensor.h"

namespace fp8train::test {
namespace {

using Values = std::vector<float>;

constexpr int64_t kCount = 900;
const std::vector<int64_t> kTensors = {0, 256, 640};  // of 256, 300 (with a gap) and 260 elements

TensorFormat by_tensor() {
  return {.dtype = DType::e4m3, .policy = ScalePolicy::current, .scale_type = ScaleType::pow2};
}

size_t tensor_of(size_t i) {
  return i < 256 ? 0 : i < 640 ? 1 : 2;
}

Values gradients_of(int rank) {
  std::mt19937 bits(static_cast<uint32_t>(rank) + 11);
  std::normal_distribution<float> normal;
  Values values(static_cast<size_t>(kCount));
  for (size_t i = 0; i < values.size(); ++i) {
    const bool gap = i >= 556 && i < 640;
    values[i] = gap ? 0.0F : normal(bits) * std::exp2(-6.0F * static_cast<float>(tensor_of(i)));
  }
  return values;
}

/// Scale of each tensor over all ranks: 2^floor(log2(448 / amax)) / sqrt(N); with the factors of
/// controllers times 2^floor(log2(factor / sqrt(N))).
Values shared(const std::vector<Values>& gradients, const Values& factors = {}) {
  Values amax(3);
  for (const Values& one : gradients) {
    for (size_t i = 0; i < one.size(); ++i) {
      amax[tensor_of(i)] = std::max(amax[tensor_of(i)], std::abs(one[i]));
    }
  }
  const auto n = static_cast<float>(gradients.size());
  Values scales;
  for (size_t t = 0; t < amax.size(); ++t) {
    const float before = factors.empty()
                             ? 1.0F / std::sqrt(n)
                             : std::exp2(std::floor(std::log2(factors[t] / std::sqrt(n))));
    scales.push_back(std::exp2(std::floor(std::log2(448.0F / amax[t]))) * before);
  }
  return scales;
}

/// `counts`: of the sums at the maximum, for each tensor.
Values expected_mean(const std::vector<Values>& gradients, const Values& factors = {},
                     std::vector<uint32_t>* counts = nullptr) {
  const Values scales = shared(gradients, factors);
  const float factor = 1.0F / static_cast<float>(gradients.size());
  Values mean(static_cast<size_t>(kCount));
  for (size_t i = 0; i < mean.size(); ++i) {
    const float scale = scales[tensor_of(i)];
    e4m3 sum = encode<e4m3>(gradients[0][i] * scale);
    for (size_t rank = 1; rank < gradients.size(); ++rank) {
      const float added = decode(sum) + decode(encode<e4m3>(gradients[rank][i] * scale));
      sum = encode<e4m3>(decode(encode<f16>(added)));
    }
    mean[i] = decode(sum) * (1.0F / (scale / factor));
    if (counts != nullptr) {
      (*counts)[tensor_of(i)] += std::abs(decode(sum)) == 448.0F ? 1 : 0;
    }
  }
  return mean;
}

void check_rank(Communicator& comm, DType dtype, const Values& own, ExchangeResult result,
                Values& out) {
  const auto device = make_device(DeviceKind::cpu);
  Tensor bucket(*device, dtype, {kCount}, MemoryCategory::gradients);
  Tensor x(*device, DType::f32, {kCount}, MemoryCategory::workspace);
  copy_from_host(*device, x, own.data());
  Tensor scales(*device, DType::f32, {3, 2}, MemoryCategory::gradients);
  fill_zero(*device, scales);
  Encoded gradients = bucket.view();
  if (dtype == DType::e4m3) {
    for (size_t t = 0; t < 3; ++t) {
      const int64_t end = t == 2 ? kCount : kTensors[t + 1];
      const int64_t count = end - kTensors[t];
      const View scale = {scales.view().as<float>() + 2 * t, DType::f32, {2}};
      const View codes = {bucket.view().as<uint8_t>() + kTensors[t], DType::e4m3, {count}};
      const View from = {x.view().as<float>() + kTensors[t], DType::f32, {count}};
      ops::store(device->stream(), {.x = from, .to = {codes, by_tensor(), scale}});
    }
    gradients = {bucket.view(), by_tensor(), scales.view()};
  } else {
    std::memcpy(bucket.view().data, own.data(), own.size() * sizeof(float));
  }
  const GradientWire wire = gradient_wire(by_tensor(), false, comm.topology());
  const auto made = make_gradient_exchange(comm, *device, wire, {gradients, kTensors}, result);
  const Buffer scratch(*device, made->scratch_bytes(), MemoryCategory::workspace);
  Tensor shard(*device, DType::f32, {made->own_elements()}, MemoryCategory::gradients);
  const bool whole = result == ExchangeResult::whole;
  made->start(device->stream(), scratch.data(), 1.0F / static_cast<float>(comm.size()),
              whole ? View{} : shard.view());
  made->finish();
  if (!whole) {
    out = to_host_f32(*device, shard.view());
    return;
  }
  out = to_host_f32(*device, x.view());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = dtype == DType::f32 ? bucket.view().as<float>()[i]
                                 : decode(bucket.view().as<e4m3>()[i]) *
                                       (1.0F / scales.view().as<float>()[2 * tensor_of(i)]);
  }
}

std::vector<Values> run(int ranks, DType dtype, ExchangeResult result, float times = 1.0F) {
  std::vector<Values> out(static_cast<size_t>(ranks));
  const auto errors = run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    Values own = gradients_of(comm.rank());
    for (float& value : own) {
      value *= times;
    }
    check_rank(comm, dtype, own, result, out[static_cast<size_t>(comm.rank())]);
  });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(ranks)));
  return out;
}

TEST_CASE("code_sum: codes are added one by one under a shared scale", "[exchange][shared]") {
  for (const int ranks : {2, 3, 4}) {
    std::vector<Values> gradients;
    for (int rank = 0; rank < ranks; ++rank) {
      gradients.push_back(gradients_of(rank));
    }
    const Values expected = expected_mean(gradients);
    for (const Values& whole : run(ranks, DType::f32, ExchangeResult::whole)) {
      CHECK(whole == expected);  // exact
    }
    Values shards;
    for (const Values& shard : run(ranks, DType::f32, ExchangeResult::shard)) {
      shards.insert(shards.end(), shard.begin(), shard.end());
    }
    CHECK(shards == expected);
  }
}

TEST_CASE("code_sum: controllers scale the sum, and learn where it is at the maximum",
          "[exchange][shared]") {
  const Values factors = {0.3F, 8.0F, 16.0F};
  for (const int ranks : {2, 3, 4}) {
    std::vector<Values> gradients;
    for (int rank = 0; rank < ranks; ++rank) {
      gradients.push_back(gradients_of(rank));
    }
    std::vector<uint32_t> counts(3);
    const Values expected = expected_mean(gradients, factors, &counts);
    CHECK(counts[1] > 0);
    CHECK(counts[2] > 0);
    for (const int64_t piece_bytes : {0, 1}) {
      std::vector<Values> means(static_cast<size_t>(ranks));
      std::vector<std::vector<uint32_t>> found(means.size());
      const auto errors = run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        const auto rank = static_cast<size_t>(comm.rank());
        const auto device = make_device(DeviceKind::cpu);
        Tensor bucket(*device, DType::f32, {kCount}, MemoryCategory::gradients);
        copy_from_host(*device, bucket, gradients[rank].data());
        std::vector<ops::AutoScale> controllers;
        for (const float factor : factors) {
          controllers.push_back({.factor = factor});
        }
        const GradientBucket shared_bucket = {
            bucket.view(),
            kTensors,
            piece_bytes,
            {controllers.data(), controllers.data() + 1, controllers.data() + 2}};
        const auto made = make_gradient_exchange(comm, *device,
                                                 gradient_wire(by_tensor(), false, comm.topology()),
                                                 shared_bucket, ExchangeResult::whole);
        const Buffer scratch(*device, made->scratch_bytes(), MemoryCategory::workspace);
        made->start(device->stream(), scratch.data(), 1.0F / static_cast<float>(ranks));
        made->finish();
        means[rank] = to_host_f32(*device, bucket.view());
        for (const ops::AutoScale& controller : controllers) {
          found[rank].push_back(controller.at_maximum);
        }
      });
      CHECK(errors == std::vector<std::string>(means.size()));
      std::vector<uint32_t> all(3);
      for (size_t rank = 0; rank < means.size(); ++rank) {
        CHECK(means[rank] == expected);  // exact
        for (size_t t = 0; t < all.size(); ++t) {
          all[t] += found[rank][t];
        }
      }
      CHECK(all == counts);  // each rank those of its shards
    }
  }
}

TEST_CASE("code_sum: stored codes stay codes", "[exchange][shared]") {
  // Codes of powers of two: contributions that are stored are decoded to the values they came from.
  std::vector<Values> gradients;
  for (int rank = 0; rank < 4; ++rank) {
    Values one = gradients_of(rank);
    const Values scales = shared({one});
    for (size_t i = 0; i < one.size(); ++i) {
      const float scale = scales[tensor_of(i)];
      one[i] = decode(encode<e4m3>(one[i] * scale)) * (1.0F / scale);
    }
    gradients.push_back(one);
  }
  const Values expected = expected_mean(gradients);
  for (const Values& whole : run(4, DType::e4m3, ExchangeResult::whole)) {
    for (size_t i = 0; i < whole.size(); ++i) {
      // The scale that is stored is 4 times the shared one, exactly.
      REQUIRE(whole[i] == expected[i]);
    }
  }
}

// 448 / amax is near the largest fp32 number, and the scale of the mean would be beyond it.
TEST_CASE("code_sum: gradients that have almost vanished stay small", "[exchange][shared]") {
  for (const DType dtype : {DType::f32, DType::e4m3}) {
    for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
      for (const Values& mean : run(4, dtype, result, 0x1p-122F)) {
        for (const float value : mean) {
          REQUIRE(std::abs(value) < 1e-30F);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
