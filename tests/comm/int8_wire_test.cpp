// Gradients that cross in int8 with a scale for 256 elements: the error of the exchanged mean,
// which follows from one rounding, and groups that do not depend on the number of ranks.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/exchange/gradient_exchange.h"
#include "device/device.h"
#include "support/rank_threads.h"
#include "tensor/stored_pool.h"
#include "tensor/tensor.h"

namespace fp8train::test {
namespace {

constexpr int64_t kGroup = 256;
constexpr int64_t kCount = 255 * kGroup + 100;  // shards of whole groups differ in length

using Values = std::vector<float>;

TensorFormat int8_wire() {
  return {.dtype = DType::i8, .block = per::group(kGroup), .policy = ScalePolicy::current};
}

/// A signal that all ranks share plus noise of equal strength, under scales that differ.
Values contribution(int rank) {
  std::mt19937 shared(1);
  std::mt19937 own(static_cast<uint32_t>(rank) + 100);
  std::normal_distribution<float> signal;
  std::normal_distribution<float> noise;
  Values values;
  for (int64_t i = 0; i < kCount; ++i) {
    const float scale = 1e-4F * std::exp(0.5F * std::sin(0.01F * static_cast<float>(i)));
    values.push_back(scale * (signal(shared) + noise(own)));
  }
  return values;
}

/// In double, by the definition.
Values rounded(const Values& values) {
  Values result;
  for (size_t first = 0; first < values.size(); first += kGroup) {
    const size_t end = std::min(first + kGroup, values.size());
    double amax = 0;
    for (size_t i = first; i < end; ++i) {
      amax = std::max(amax, std::abs(double{values[i]}));
    }
    for (size_t i = first; i < end; ++i) {
      result.push_back(static_cast<float>(std::nearbyint(values[i] * 127 / amax) * amax / 127));
    }
  }
  return result;
}

double relative_error(const Values& got, const Values& want) {
  double squares = 0;
  double difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += double{want[i]} * want[i];
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
  }
  return std::sqrt(difference / squares);
}

/// The means of all contributions, put together from the shards of ranks.
Values exchanged(const std::vector<Values>& contributions, int64_t piece_bytes) {
  const auto ranks = static_cast<int>(contributions.size());
  Values all(static_cast<size_t>(kCount));
  const auto errors = run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    const auto device = make_device(DeviceKind::cpu);
    Tensor bucket(*device, DType::f32, {kCount}, MemoryCategory::gradients);
    copy_from_host(*device, bucket, contributions[static_cast<size_t>(comm.rank())].data());
    const auto exchange = make_gradient_exchange(
        comm, *device, gradient_wire(int8_wire(), false, comm.topology()),
        {.gradients = bucket.view(), .tensors = {0}, .piece_bytes = piece_bytes},
        ExchangeResult::shard);
    check(exchange->shard_elements() % kGroup == 0, "a shard has whole groups");
    const Buffer scratch(*device, exchange->scratch_bytes(), MemoryCategory::workspace);
    const int64_t begin = comm.rank() * exchange->shard_elements();
    const int64_t own = exchange->own_elements();
    const View shard = {bucket.view().as<float>() + begin, DType::f32, {own}};
    exchange->start(device->stream(), scratch.data(), 1.0F / static_cast<float>(ranks), shard);
    exchange->finish();
    std::copy_n(shard.as<float>(), own, all.begin() + begin);
  });
  CHECK(errors == std::vector<std::string>(errors.size()));
  return all;
}

TEST_CASE("int8 wire: the error of the mean is that of one rounding", "[exchange][error]") {
  for (const int ranks : {2, 8}) {
    CAPTURE(ranks);
    std::vector<Values> contributions;
    Values mean(static_cast<size_t>(kCount));
    double one = 0;  // of a contribution
    for (int rank = 0; rank < ranks; ++rank) {
      contributions.push_back(contribution(rank));
      one += relative_error(rounded(contributions.back()), contributions.back()) / ranks;
      for (size_t i = 0; i < mean.size(); ++i) {
        mean[i] += contributions.back()[i] / static_cast<float>(ranks);
      }
    }
    // Errors of ranks are independent; of their values half of the power is the signal's.
    const double expected = one / std::sqrt(ranks) * std::sqrt(2 / (1 + 1.0 / ranks));
    const double error = relative_error(exchanged(contributions, 0), mean);
    INFO("one rounding " << one << ", mean " << error << " for " << expected);
    CHECK(one < 0.012);  // of e4m3: 0.0245
    CHECK(error == Approx(expected).epsilon(0.03));
  }
}

TEST_CASE("int8 wire: groups do not depend on the number of ranks or pieces", "[exchange]") {
  const Values own = contribution(0);
  const Values want = rounded(own);
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int64_t piece_bytes : {int64_t{0}, int64_t{20000}}) {
      CAPTURE(ranks, piece_bytes);
      const std::vector<Values> same(static_cast<size_t>(ranks), own);
      // The mean of equal codes under equal scales: one rounding, but for that of fp32.
      CHECK(relative_error(exchanged(same, piece_bytes), want) < 1e-6);
    }
  }
}

TEST_CASE("ranges begin where the wire's groups do", "[exchange]") {
  CHECK(range_alignment(int8_wire()) == 256);
  CHECK(range_alignment(plain(DType::bf16)) == kRangeAlignment);
  TensorFormat smaller = int8_wire();
  smaller.block = per::group(128);
  CHECK(range_alignment(smaller) == kRangeAlignment);
}

}  // namespace
}  // namespace fp8train::test
