// Cross-entropy against the cpu. The maximum of a row is the cpu's. An exponential is that of
// ops/support/fast_math.cuh, off by less than 2^-21 + |x| 2^-23 of itself (correctly rounded in the
// host form), and their sum S has another order. Its terms are positive, so that a sum of a few
// hundred of them in fp32 is off by less than 1e-5 of S, and so are the gradients; a loss log(S) -
// .. is off by as much absolutely. Rounding to bf16 or fp16 may then go to the neighbour.

#include "ops/loss/cross_entropy.h"
#include "numeric/with_type.h"

#include <catch2/catch.hpp>

#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

constexpr double kSumError = 1e-5;

double neighbour(DType type) {
  return type == DType::f32 ? kSumError : (type == DType::bf16 ? 0x1p-7 : 0x1p-10);
}

struct Case {
  int64_t rows, columns, vocabulary;  // vocabulary 0: all columns
  float z_loss = 0.0F;
  bool scaled = false;
  bool write_gradient = true;
  int64_t offset = 0;
  int64_t ranks = 0,
          parts = 1;  // ranks that have columns, parts that each has of them; 0: one call
};

struct Result {
  Array logits, losses, z_losses;
};

Array targets_of(const Case& c) {
  const int64_t vocabulary = c.vocabulary == 0 ? c.columns : c.vocabulary;
  Array targets(DType::i32, {c.rows});
  for (int64_t row = 0; row < c.rows; ++row) {
    targets.as<int32_t>()[row] = static_cast<int32_t>((row * 7919 + 3) % vocabulary);
  }
  return targets;
}

/// Puts the columns of each rank on the device, and makes all statistics.
std::vector<View> put_parts(Side& side, const Case& c, const Array& logits,
                            ops::CrossEntropy& call) {
  const int64_t own = c.columns / c.ranks;
  const View statistics = side.space(DType::f32, {c.ranks * c.parts, c.rows, 3});
  std::vector<View> parts;
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    Array part(logits.dtype(), {c.rows, own});
    for (int64_t i = 0; i < part.count(); ++i) {
      part.set(i, logits.get(i / own * c.columns + rank * own + i % own));
    }
    parts.push_back(side.put(part, c.offset));
    ops::vocabulary_statistics(
        side.stream(),
        {.logits = parts.back(),
         .targets = call.targets,
         .vocabulary = call.vocabulary,
         .first_column = rank * own,
         .statistics = rows_of(statistics, rank * c.parts * c.rows, c.parts * c.rows)});
  }
  call.statistics = statistics;
  return parts;
}

/// The columns of all ranks next to one another again.
Array joined(Side& side, const Case& c, const std::vector<View>& parts) {
  const int64_t own = c.columns / c.ranks;
  Array logits(parts.front().dtype, {c.rows, c.columns});
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    const Array part = side.get(parts[static_cast<size_t>(rank)]);
    for (int64_t i = 0; i < part.count(); ++i) {
      logits.set(i / own * c.columns + rank * own + i % own, part.get(i));
    }
  }
  return logits;
}

Result run_case(Side& side, const Case& c, const Array& logits, const Array& targets) {
  const View in_place = side.put(logits, c.offset);
  const View losses = side.space(DType::f32, {c.rows});
  const View z_losses = side.space(DType::f32, {c.rows});
  ops::CrossEntropy call;
  call.logits = in_place;
  call.targets = side.put(targets);
  call.losses = losses;
  call.z_losses = z_losses;
  call.write_gradient = c.write_gradient;
  call.gradient_scale = c.scaled ? side.put_value(8.0F) : nullptr;
  call.gradient_factor = 0.5F;
  call.z_loss = c.z_loss;
  call.vocabulary = c.vocabulary;
  if (c.ranks == 0) {
    ops::cross_entropy(side.stream(), call);
    return {side.get(in_place), side.get(losses), side.get(z_losses)};
  }
  const std::vector<View> parts = put_parts(side, c, logits, call);
  for (const View& part : parts) {
    call.logits = part;
    ops::cross_entropy(side.stream(), call);
    call.first_column += c.columns / c.ranks;
  }
  return {joined(side, c, parts), side.get(losses), side.get(z_losses)};
}

void check_case(const Case& c, const Array& logits, const Array& targets) {
  INFO(name_of(logits.dtype()) << " " << c.rows << " x " << c.columns << " of " << c.vocabulary
                               << ", z " << c.z_loss << ", offset " << c.offset << ", " << c.ranks
                               << " ranks of " << c.parts << " parts");
  const auto run = [&](Side& side) { return run_case(side, c, logits, targets); };
  const Result cuda = on_cuda(run);
  const Result cpu = on_cpu(run);
  CHECK(worst_difference(cuda.losses, cpu.losses, kSumError, kSumError) <= 1);
  CHECK(worst_difference(cuda.z_losses, cpu.z_losses, kSumError, kSumError) <= 1);
  if (!c.write_gradient) {
    CHECK(same_values(cuda.logits, logits));
    return;
  }
  // The target's p - 1 cancels where p is near 1, and fp16 has few bits near zero: 2e-6 absolute.
  CHECK(worst_difference(cuda.logits, cpu.logits, neighbour(logits.dtype()), 2e-6) <= 1);
}

TEST_CASE("cross_entropy matches the cpu for odd shapes and padding", "[cuda][cross_entropy]") {
  for (const DType type : FloatTypes::kTypes) {
    for (const Case& c : {Case{3, 1, 0},
                          {4, 5, 0},
                          {2, 8, 0},
                          {3, 1000, 0},
                          {2, 9000, 8777},
                          {2, 9003, 0},
                          {3, 136, 130, 1e-3F},
                          {3, 250, 0, 1e-2F, true},
                          {2, 512, 0, 1e-3F, true, false},
                          {2, 72, 65, 0.0F, true, true, 1},
                          {1, 20000, 19999, 0.0F, true}}) {
      check_case(c, Array(type, {c.rows, c.columns}, random_values(c.rows * c.columns, 1, 4.0F)),
                 targets_of(c));
    }
  }
}

TEST_CASE("columns of ranks match the cpu, and those of one rank", "[cuda][cross_entropy]") {
  for (const DType type : FloatTypes::kTypes) {
    for (Case c : {Case{3, 384, 257, 0, true, true, 0, 8},  // the last have padding alone
                   {2, 1024, 1000, 1e-2F, true, true, 0, 4, 2},
                   {3, 4096, 4096, 1e-3F, true, true, 0, 2},
                   {2, 1000, 999, 1e-3F, true, true, 0, 4, 2},  // parts of 125
                   {2, 64, 61, 0, true, true, 1, 2, 4},
                   {2, 9000, 8777, 1e-3F, true, false, 0, 1, 3},
                   {1, 20000, 19999, 0, true, true, 0, 2}}) {
      const Array logits(type, {c.rows, c.columns}, random_values(c.rows * c.columns, 1, 4.0F));
      const Array targets = targets_of(c);
      check_case(c, logits, targets);
      const auto run = [&](Side& side) { return run_case(side, c, logits, targets); };
      const Result parts = on_cuda(run);
      c.ranks = 0;
      const Result whole = on_cuda(run);
      CHECK(worst_difference(parts.losses, whole.losses, kSumError, kSumError) <= 1);
      CHECK(worst_difference(parts.z_losses, whole.z_losses, kSumError, kSumError) <= 1);
      CHECK(worst_difference(parts.logits, whole.logits, neighbour(type), 2e-6) <= 1);
    }
  }
}

TEST_CASE("a vocabulary of today's size", "[cuda][cross_entropy]") {
  const Case c = {.rows = 1, .columns = 151936, .vocabulary = 151669, .z_loss = 1e-4F};
  for (const DType type : {DType::f32, DType::bf16}) {
    check_case(c, Array(type, {c.rows, c.columns}, random_values(c.columns, 1, 3.0F)),
               targets_of(c));
  }
}

TEST_CASE("logits that rise, fall or lie far apart", "[cuda][cross_entropy]") {
  const Case c = {4, 4160, 4150};
  std::vector<float> values(static_cast<size_t>(c.rows * c.columns));
  for (int64_t i = 0; i < c.columns; ++i) {
    const float x = static_cast<float>(i);
    values[static_cast<size_t>(i)] = x * 0.02F;  // every pack has a new maximum
    values[static_cast<size_t>(c.columns + i)] = -x * 0.02F;
    values[static_cast<size_t>(2 * c.columns + i)] = i == 4149 ? 3e4F : -3e4F;
    values[static_cast<size_t>(3 * c.columns + i)] = i % 9 == 0 ? -INFINITY : 1.0F;
  }
  for (const DType type : FloatTypes::kTypes) {
    check_case(c, Array(type, {c.rows, c.columns}, values), targets_of(c));
  }
}

TEST_CASE("ignored and impossible targets", "[cuda][cross_entropy][small]") {
  for (const int64_t columns : {int64_t{24}, int64_t{39}}) {
    const Case c = {4, columns, 20};
    Array targets(DType::i32, {4});
    const int32_t values[] = {-1, -100, 20, 19};
    std::copy_n(values, 4, targets.as<int32_t>());
    check_case(c, Array(DType::bf16, {4, columns}, random_values(4 * columns, 1)), targets);
    for (const int64_t ranks : {1, 3}) {
      const Case parts = {.rows = 4, .columns = columns, .vocabulary = 20, .ranks = ranks};
      check_case(parts, Array(DType::bf16, {4, columns}, random_values(4 * columns, 1)), targets);
    }
    const Case unwritten = {
        .rows = 4, .columns = columns, .vocabulary = 20, .write_gradient = false};
    check_case(unwritten, Array(DType::bf16, {4, columns}, random_values(4 * columns, 1)), targets);
  }
}

TEST_CASE("NaN and infinite logits spoil their row, and only it", "[cuda][cross_entropy]") {
  const int64_t columns = 5000;
  for (const float bad : {NAN, INFINITY}) {
    for (const int64_t at : {0, 4095, 4096, 4999}) {
      Array logits(DType::f32, {2, columns}, random_values(2 * columns, 1));
      logits.set(at, bad);
      const Case c = {2, columns, 0};
      const Array targets = targets_of(c);
      for (const int64_t ranks : {1, 4}) {
        check_case({.rows = 2, .columns = columns, .vocabulary = columns, .ranks = ranks}, logits,
                   targets);
      }
      const auto run = [&](Side& side) { return run_case(side, c, logits, targets); };
      const Result cuda = on_cuda(run);
      const Result cpu = on_cpu(run);
      CHECK(std::isnan(cuda.losses.get(0)));
      CHECK(std::isnan(cpu.losses.get(0)));
      CHECK(worst_difference(cuda.losses, cpu.losses, kSumError, kSumError) <= 1);
      CHECK(worst_difference(cuda.logits, cpu.logits, kSumError, 2e-6) <= 1);
    }
  }
  // A row of nothing but -infinity has no soft-max; one NaN among -infinity shows too.
  for (const float other : {-INFINITY, NAN}) {
    std::vector<float> values(80, -INFINITY);
    values[79] = other;
    for (const int64_t ranks : {0, 1, 4}) {
      const Case c = {.rows = 1, .columns = 80, .vocabulary = 80, .z_loss = 1e-3F, .ranks = ranks};
      check_case(c, Array(DType::f32, {1, 80}, values), targets_of(c));
    }
  }
}

TEST_CASE("the same bits twice", "[cuda][cross_entropy]") {
  const Case c = {3, 9000, 8777, 1e-3F, true};
  const Array logits(DType::bf16, {c.rows, c.columns}, random_values(c.rows * c.columns, 1, 4.0F));
  const Array targets = targets_of(c);
  const auto run = [&](Side& side) { return run_case(side, c, logits, targets); };
  const Result first = on_cuda(run);
  const Result second = on_cuda(run);
  CHECK(first.logits.bytes() == second.logits.bytes());
  CHECK(first.losses.bytes() == second.losses.bytes());
}

TEST_CASE("accumulate_loss is exact", "[cuda][cross_entropy]") {
  for (const int64_t rows : {1, 511, 512, 513, 3000}) {
    const Array losses(DType::f32, {rows}, random_values(rows, 1, 100.0F));
    Array targets(DType::i32, {rows});
    for (int64_t row = 0; row < rows; ++row) {
      targets.as<int32_t>()[row] = row % 3 == 0 ? -1 : static_cast<int32_t>(row % 5);
    }
    const auto run = [&](Side& side) {
      double* sum = side.put_value(0.3);
      int64_t* count = side.put_value(int64_t{11});
      ops::accumulate_loss(side.stream(), side.put(losses), side.put(targets), sum, count);
      return std::pair(side.get_value(sum), side.get_value(count));
    };
    CHECK(on_cuda(run) == on_cpu(run));
  }
}

}  // namespace
}  // namespace fp8train::test
