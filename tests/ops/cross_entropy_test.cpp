#include "ops/loss/cross_entropy.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <span>

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

/// Columns begin .. of all rows.
Array columns_of(const Array& x, int64_t rows, int64_t begin, int64_t count) {
  const int64_t width = x.count() / rows;
  Array columns(x.dtype(), {rows, count});
  for (int64_t i = 0; i < rows * count; ++i) {
    columns.set(i, x.get(i / count * width + begin + i % count));
  }
  return columns;
}

/// Computes a problem as `ranks` ranks do that each have some of its columns, of which each makes
/// `parts` statistics. The logits become the gradient. Returns whether all have the same losses.
bool run_in_parts(Problem& problem, int64_t ranks, int64_t parts,
                  const ops::OpTable& table = *cpu_tables().back()) {
  const int64_t rows = problem.targets.count();
  const int64_t width = problem.logits.count() / rows;
  const int64_t own = width / ranks;
  const int64_t vocabulary = problem.call.vocabulary == 0 ? width : problem.call.vocabulary;
  Array statistics(DType::f32, {ranks * parts, rows, 3});
  std::vector<Array> logits;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    logits.push_back(columns_of(problem.logits, rows, rank * own, own));
    const std::vector<uint8_t> before = logits.back().bytes();
    table.vocabulary_statistics(
        cpu_stream(),
        {.logits = logits.back(),
         .targets = problem.targets,
         .vocabulary = vocabulary,
         .first_column = rank * own,
         .statistics = {
             statistics.as<float>() + rank * parts * rows * 3, DType::f32, {parts, rows, 3}}});
    REQUIRE(logits.back().bytes() == before);
  }
  bool same = true;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<uint8_t> losses = problem.losses.bytes();
    ops::CrossEntropy call = problem.call;
    call.logits = logits[static_cast<size_t>(rank)];
    call.vocabulary = vocabulary;
    call.statistics = statistics;
    call.first_column = rank * own;
    table.cross_entropy(cpu_stream(), call);
    same = same && (rank == 0 || problem.losses.bytes() == losses);
    for (int64_t i = 0; i < rows * own; ++i) {
      problem.logits.set(i / own * width + rank * own + i % own,
                         logits[static_cast<size_t>(rank)].get(i));
    }
  }
  return same;
}

/// Compares losses, z-losses and gradients with the definition.
void check_reference(Problem& problem, const std::vector<float>& before, double rounding) {
  const int64_t rows = problem.targets.count();
  const int64_t columns = problem.logits.count() / rows;
  const int64_t used = problem.call.vocabulary == 0 ? columns : problem.call.vocabulary;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> row(before.begin() + r * columns, before.begin() + (r + 1) * columns);
    const auto [loss, z] = reference_row(row, used, problem.targets.as<int32_t>()[r],
                                         problem.call.z_loss, problem.scale);
    REQUIRE(problem.losses.get(r) == Approx(loss).epsilon(2e-6).margin(1e-6));
    REQUIRE(problem.z_losses.get(r) == Approx(z).epsilon(2e-6).margin(1e-6));
    double worst = 0.0;
    for (int64_t c = 0; c < columns; ++c) {
      const double expected = row[static_cast<size_t>(c)];
      // One rounding of the type, some of fp32, and fp16's subnormals.
      const double allowed = std::fabs(expected) * (rounding + 3e-6) + 1e-7 * problem.scale + 3e-8;
      worst = std::max(worst, std::fabs(problem.logits.get(r * columns + c) - expected) / allowed);
    }
    CAPTURE(name_of(problem.logits.dtype()), columns, problem.call.z_loss, r);
    REQUIRE(worst <= 1.0);
  }
}

Bits bits_of(const Problem& problem) {
  Bits bits;
  bits.add(problem.logits);
  bits.add(problem.losses);
  bits.add(problem.z_losses);
  return bits;
}

}  // namespace

TEST_CASE("cross_entropy and its gradient agree with fp64", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const auto& [columns, vocabulary] :
         {std::pair<int64_t, int64_t>{1, 1}, {17, 17}, {100, 97}, {3000, 2999}}) {
      for (const float z_loss : {0.0F, 0.01F}) {
        Problem problem(type.dtype, 23, columns, vocabulary, z_loss);
        const std::vector<float> before = problem.logits.values();
        ops::cross_entropy(cpu_stream(), problem.call);
        check_reference(problem, before, type.rounding);
      }
    }
  }
}

TEST_CASE("ranks that have columns each compute the cross_entropy of all", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    // Of 257 the last ranks have padding alone, of 1000 the last one has some.
    for (const auto& [columns, vocabulary] :
         {std::pair<int64_t, int64_t>{384, 257}, {1024, 1000}, {4096, 4096}}) {
      for (const float z_loss : {0.0F, 0.01F}) {
        Problem whole(type.dtype, 23, columns, vocabulary, z_loss);
        const std::vector<float> before = whole.logits.values();
        ops::cross_entropy(cpu_stream(), whole.call);
        Problem eighths(type.dtype, 23, columns, vocabulary, z_loss);
        REQUIRE(run_in_parts(eighths, 1, 8));
        for (const int64_t ranks : {1, 2, 4, 8}) {
          CAPTURE(name_of(type.dtype), columns, z_loss, ranks);
          Problem problem(type.dtype, 23, columns, vocabulary, z_loss);
          REQUIRE(run_in_parts(problem, ranks, 1));
          check_reference(problem, before, type.rounding);
          CHECK(worst_difference(problem.losses, whole.losses, 1e-6, 1e-6) <= 1);
          CHECK(worst_difference(problem.z_losses, whole.z_losses, 1e-6, 1e-6) <= 1);
          // The bits of a part depend on nothing else.
          Problem same(type.dtype, 23, columns, vocabulary, z_loss);
          REQUIRE(run_in_parts(same, ranks, 8 / ranks));
          CHECK(same.losses.bytes() == eighths.losses.bytes());
          CHECK(same.z_losses.bytes() == eighths.z_losses.bytes());
          CHECK(same.logits.bytes() == eighths.logits.bytes());
          if (ranks == 1) {
            CHECK(problem.losses.bytes() == whole.losses.bytes());
            CHECK(problem.logits.bytes() == whole.logits.bytes());
          }
        }
      }
    }
  }
}

TEST_CASE("without gradient ranks leave their logits as they are", "[ops]") {
  Problem problem(DType::bf16, 9, 64, 60, 0.0F);
  problem.call.write_gradient = false;
  const std::vector<uint8_t> before = problem.logits.bytes();
  REQUIRE(run_in_parts(problem, 4, 1));
  CHECK(problem.logits.bytes() == before);
  Problem whole(DType::bf16, 9, 64, 60, 0.0F);
  ops::cross_entropy(cpu_stream(), whole.call);
  CHECK(worst_difference(problem.losses, whole.losses, 1e-6, 1e-6) <= 1);
}

TEST_CASE("what one rank finds in its columns, all know", "[ops]") {
  const auto same_numbers = [](const Array& a, const Array& b) {
    return worst_difference(a, b, 1e-6, 1e-6) <= 1;
  };
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t ranks : {1, 2, 4, 8}) {
      // NaN, +infinity and -infinity in some columns, rows of nothing but -infinity, also but for
      // the columns of one rank, or with a NaN; targets that are ignored and impossible.
      const auto fill = [](Problem& problem) {
        const int64_t columns = 64;
        problem.logits.set(0 * columns + 3, NAN);
        problem.logits.set(1 * columns + 50, INFINITY);
        problem.logits.set(2 * columns + 9, -INFINITY);
        for (int64_t c = 0; c < columns; ++c) {
          problem.logits.set(3 * columns + c, -INFINITY);
          problem.logits.set(4 * columns + c, c / 8 == 5 ? 0.5F : -INFINITY);
          problem.logits.set(5 * columns + c, c == 60 ? NAN : -INFINITY);
          problem.logits.set(6 * columns + c, c == 1 ? 3e38F : -3e38F);
        }
        const int32_t targets[] = {1, 2, 9, 4, 41, 9, 1, 61, 1000, -1, -100, 60};
        std::copy(std::begin(targets), std::end(targets), problem.targets.as<int32_t>());
        for (float& x : std::span(problem.losses.as<float>(), 12)) {
          x = 7.0F;
        }
      };
      for (const float z_loss : {0.0F, 0.01F}) {
        CAPTURE(name_of(type.dtype), ranks, z_loss);
        Problem whole(type.dtype, 12, 64, 61, z_loss);
        fill(whole);
        Problem problem(type.dtype, 12, 64, 61, z_loss);
        fill(problem);
        ops::cross_entropy(cpu_stream(), whole.call);
        run_in_parts(problem, ranks, 1);
        CHECK(same_numbers(problem.losses, whole.losses));
        CHECK(same_numbers(problem.z_losses, whole.z_losses));
        CHECK(worst_difference(problem.logits, whole.logits, 2 * type.rounding + 1e-6, 1e-7) <= 1);
        CHECK(std::isnan(problem.losses.get(3)));
        CHECK(std::isnan(problem.z_losses.get(3)) == (z_loss != 0.0F));
        CHECK(problem.losses.get(4) == Approx(std::log(8.0)));
        CHECK(std::isnan(problem.losses.get(8)));
        CHECK(problem.losses.get(9) == 0.0F);
      }
    }
  }
}

TEST_CASE(
    "cross_entropy gives the same bits at levels with fused multiply-adds and any thread count",
    "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    REQUIRE(same_everywhere(
        [&](const ops::OpTable& table) {
          Problem problem(type.dtype, 19, 1501, 1499, 1e-3F);
          table.cross_entropy(cpu_stream(), problem.call);
          return bits_of(problem);
        },
        true));
  }
}

TEST_CASE("statistics are those of the columns of each part", "[ops]") {
  Array logits(DType::f32, {4, 8}, random_values(32, 5));
  Array targets(DType::i32, {4});
  const int32_t tokens[] = {14, 3, -1, 17};  // here, in another part, ignored, impossible
  std::copy(std::begin(tokens), std::end(tokens), targets.as<int32_t>());
  Array statistics(DType::f32, {4, 4, 3});
  ops::vocabulary_statistics(cpu_stream(), {.logits = logits,
                                            .targets = targets,
                                            .vocabulary = 17,
                                            .first_column = 12,
                                            .statistics = statistics});
  for (int64_t part = 0; part < 4; ++part) {
    for (int64_t row = 0; row < 4; ++row) {
      CAPTURE(part, row);
      float largest = -INFINITY;
      double sum = 0.0;
      for (int64_t c = 2 * part; c < std::min<int64_t>(2 * part + 2, row < 2 ? 5 : 0); ++c) {
        largest = std::max(largest, logits.get(row * 8 + c));
      }
      for (int64_t c = 2 * part; c < std::min<int64_t>(2 * part + 2, row < 2 ? 5 : 0); ++c) {
        sum += std::exp(static_cast<double>(logits.get(row * 8 + c)) - largest);
      }
      const int64_t at = (part * 4 + row) * 3;
      CHECK(statistics.get(at) == largest);
      CHECK(statistics.get(at + 1) == Approx(sum).epsilon(1e-6));
      CHECK(statistics.get(at + 2) == (part == 1 && row == 0 ? logits.get(2) : 0.0F));
    }
  }
}

TEST_CASE("statistics give the same bits at levels with fused multiply-adds and any thread count",
          "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    REQUIRE(same_everywhere(
        [&](const ops::OpTable& table) {
          Problem problem(type.dtype, 19, 1512, 1499, 1e-3F);
          run_in_parts(problem, 2, 3, table);
          return bits_of(problem);
        },
        true));
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
  problem.call.vocabulary = 8;
  problem.call.first_column = 8;  // without statistics
  CHECK_THROWS_AS(ops::cross_entropy(cpu_stream(), problem.call), InternalError);
}

TEST_CASE("parts of a vocabulary that do not fit are refused", "[ops]") {
  Problem problem(DType::f32, 2, 8, 8, 0.0F);
  Array statistics(DType::f32, {3, 2, 3});
  ops::VocabularyStatistics call = {.logits = problem.logits,
                                    .targets = problem.targets,
                                    .vocabulary = 8,
                                    .statistics = statistics};
  CHECK_THROWS_WITH(ops::vocabulary_statistics(cpu_stream(), call), Catch::Contains("equally"));
  call.statistics = View{statistics.as<float>(), DType::f32, {2, 2, 2}};
  CHECK_THROWS_WITH(ops::vocabulary_statistics(cpu_stream(), call), Catch::Contains("[parts,"));
  call.statistics = View{statistics.as<float>(), DType::f32, {2, 2, 3}};
  call.vocabulary = 0;
  CHECK_THROWS_WITH(ops::vocabulary_statistics(cpu_stream(), call), Catch::Contains("needed"));
  problem.call.statistics = call.statistics;
  problem.call.vocabulary = 0;
  CHECK_THROWS_WITH(ops::cross_entropy(cpu_stream(), problem.call), Catch::Contains("needed"));
}
