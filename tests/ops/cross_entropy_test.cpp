#include "ops/loss/cross_entropy.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "ops/op_test_support.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

struct Problem {
  Problem(DType dtype, int64_t rows, int64_t columns, int64_t vocabulary, float z_loss)
      : logits(dtype, {rows, columns}, random_values(rows * columns, 41, 3.0F)),
        targets(DType::i32, {rows}),
        losses(DType::f32, {rows}),
        z_losses(DType::f32, {rows}) {
    for (int64_t r = 0; r < rows; ++r) {
      targets.as<int32_t>()[r] =
          r % 5 == 3 ? -1
                     : static_cast<int32_t>(r * 131 % (vocabulary == 0 ? columns : vocabulary));
    }
    call.logits = logits;
    call.targets = targets;
    call.losses = losses;
    call.z_losses = z_losses;
    call.gradient_scale = &half_scale;  // the two factors multiply to `scale`
    call.gradient_factor = 2.0F;
    call.z_loss = z_loss;
    call.vocabulary = vocabulary;
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  Array logits, targets, losses, z_losses;
  float scale = 0.125F;
  float half_scale = 0.0625F;
  ops::CrossEntropy call;
};

/// The definition in fp64: cross entropy and z-loss of one row and, in place, their gradient.
std::pair<double, double> reference_row(std::vector<double>& x, int64_t vocabulary, int32_t target,
                                        double z_loss, double scale) {
  const auto end = x.begin() + vocabulary;
  if (target < 0) {
    std::fill(x.begin(), x.end(), 0.0);
    return {0.0, 0.0};
  }
  const double largest = *std::max_element(x.begin(), end);
  double sum = 0.0;
  for (auto value = x.begin(); value != end; ++value) {
    sum += std::exp(*value - largest);
  }
  const double log_sum_exp = largest + std::log(sum);
  const double loss = log_sum_exp - x[static_cast<size_t>(target)];
  for (size_t c = 0; c < x.size(); ++c) {
    if (static_cast<int64_t>(c) >= vocabulary) {
      x[c] = 0.0;
      continue;
    }
    const double p = std::exp(x[c] - log_sum_exp);
    const double hit = static_cast<int32_t>(c) == target ? 1.0 : 0.0;
    x[c] = (p * (1.0 + 2.0 * z_loss * log_sum_exp) - hit) * scale;
  }
  return {loss, z_loss * log_sum_exp * log_sum_exp};
}

}  // namespace

TEST_CASE("cross_entropy and its gradient agree with fp64", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const auto& [columns, vocabulary] :
         {std::pair<int64_t, int64_t>{1, 1}, {17, 17}, {100, 97}, {3000, 2999}}) {
      for (const float z_loss : {0.0F, 0.01F}) {
        const int64_t rows = 23;
        Problem problem(type.dtype, rows, columns, vocabulary, z_loss);
        const std::vector<float> before = problem.logits.values();
        ops::cross_entropy(cpu_stream(), problem.call);
        for (int64_t r = 0; r < rows; ++r) {
          std::vector<double> row(before.begin() + r * columns, before.begin() + (r + 1) * columns);
          const auto [loss, z] = reference_row(row, vocabulary, problem.targets.as<int32_t>()[r],
                                               z_loss, problem.scale);
          REQUIRE(problem.losses.get(r) == Approx(loss).epsilon(2e-6).margin(1e-6));
          REQUIRE(problem.z_losses.get(r) == Approx(z).epsilon(2e-6).margin(1e-6));
          double worst = 0.0;
          for (int64_t c = 0; c < columns; ++c) {
            const double expected = row[static_cast<size_t>(c)];
            // One rounding of the type, some of fp32, and fp16's subnormals.
            const double allowed =
                std::fabs(expected) * (type.rounding + 3e-6) + 1e-7 * problem.scale + 3e-8;
            worst = std::max(worst,
                             std::fabs(problem.logits.get(r * columns + c) - expected) / allowed);
          }
          CAPTURE(name_of(type.dtype), columns, z_loss, r);
          REQUIRE(worst <= 1.0);
        }
      }
    }
  }
}

TEST_CASE("cross_entropy gives the same bits at every level and thread count", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    REQUIRE(same_everywhere([&](const ops::OpTable& table) {
      Problem problem(type.dtype, 19, 1501, 1499, 1e-3F);
      table.cross_entropy(cpu_stream(), problem.call);
      Bits bits;
      bits.add(problem.logits);
      bits.add(problem.losses);
      bits.add(problem.z_losses);
      return bits;
    }));
  }
}

TEST_CASE("without gradient the logits stay; the loss is the same", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    Problem with(type.dtype, 9, 700, 0, 0.0F);
    with.targets = Array(DType::i32, {9});
    with.call.targets = with.targets;
    ops::cross_entropy(cpu_stream(), with.call);
    Problem without(type.dtype, 9, 700, 0, 0.0F);
    without.targets = Array(DType::i32, {9});
    without.call.targets = without.targets;
    without.call.write_gradient = false;
    const std::vector<uint8_t> before = without.logits.bytes();
    ops::cross_entropy(cpu_stream(), without.call);
    CHECK(without.logits.bytes() == before);
    CHECK(without.losses.bytes() == with.losses.bytes());
  }
}

TEST_CASE("logits that overflowed and targets beyond the vocabulary give a NaN loss", "[ops]") {
  Problem problem(DType::bf16, 4, 40, 40, 0.0F);
  for (int r = 0; r < 4; ++r) {
    problem.targets.as<int32_t>()[r] = 1;
  }
  problem.logits.set(5, INFINITY);
  problem.logits.set(40 + 5, NAN);
  problem.targets.as<int32_t>()[2] = 40;
  ops::cross_entropy(cpu_stream(), problem.call);
  CHECK(std::isnan(problem.losses.get(0)));
  CHECK(std::isnan(problem.losses.get(1)));
  CHECK(std::isnan(problem.losses.get(2)));
  CHECK(std::isfinite(problem.losses.get(3)));
}

TEST_CASE("huge logits do not overflow", "[ops]") {
  Problem problem(DType::f32, 1, 4, 4, 0.0F);
  const float logits[] = {3e38F, -3e38F, 1.0F, 3e38F};
  std::copy(std::begin(logits), std::end(logits), problem.logits.as<float>());
  problem.targets.as<int32_t>()[0] = 0;
  ops::cross_entropy(cpu_stream(), problem.call);
  CHECK(problem.losses.get(0) == Approx(std::log(2.0)));
  CHECK(problem.logits.values() == std::vector<float>{-0.0625F, 0.0F, 0.0F, 0.0625F});
}

TEST_CASE("accumulate_loss adds losses and counts targets", "[ops]") {
  Array losses(DType::f32, {3}, {1.5F, 0.0F, 2.25F});
  Array targets(DType::i32, {3});
  targets.as<int32_t>()[1] = -1;
  double sum = 1.0;
  int64_t count = 10;
  ops::accumulate_loss(cpu_stream(), losses, targets, &sum, &count);
  CHECK(sum == 4.75);
  CHECK(count == 12);
  ops::accumulate_loss(cpu_stream(), losses, targets, &sum, nullptr);
  CHECK(sum == 8.5);
}

TEST_CASE("cross_entropy refuses a vocabulary wider than the logits", "[ops]") {
  Problem problem(DType::f32, 2, 8, 9, 0.0F);
  CHECK_THROWS_AS(ops::cross_entropy(cpu_stream(), problem.call), InternalError);
}
