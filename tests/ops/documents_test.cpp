// Sequences of several documents: attention, rotation and learned positions of each are those of
// the document alone.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/loss/cross_entropy.h"
#include "ops/op_test_support.h"
#include "ops/pointwise/embedding.h"

namespace fp8train::test {
namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;

/// The lengths of the documents of each sequence, all of one length.
using Sequences = std::vector<std::vector<int64_t>>;

struct Packed {
  Packed(const Sequences& sequences, int64_t head_dim, DType dtype)
      : dim(head_dim), width((kHeads + 2 * kKvHeads) * head_dim) {
    batch = static_cast<int64_t>(sequences.size());
    for (const std::vector<int64_t>& documents : sequences) {
      length = 0;
      for (const int64_t count : documents) {
        for (int64_t i = 0; i < count; ++i) starts.push_back(static_cast<int32_t>(length));
        length += count;
      }
    }
    const int64_t rows = batch * length;
    qkv = Array(dtype, {rows, width}, random_values(rows * width, 1));
    dout = Array(dtype, {rows, kHeads * dim}, random_values(rows * kHeads * dim, 2));
    out = Array(dtype, {rows, kHeads * dim});
    gradients = Array(dtype, {rows, width});
    log_sum_exp = Array(DType::f32, {batch, kHeads, length});
  }

  ops::HeadsView heads(Array& array, int64_t row, int64_t first, int64_t capacity) const {
    const int64_t columns = array.count() / (batch * length);
    return {array.as<uint8_t>() +
                static_cast<size_t>(row * columns + first * dim) * size_of(array.dtype()),
            array.dtype(), columns, capacity};
  }

  /// Forward and backward of `sequences` sequences of `count` rows from `row` on.
  void run(const ops::OpTable& table, int64_t row, int64_t sequences, int64_t count,
           ConstView document_starts) {
    const ops::AttentionShape shape = {
        sequences, count, count, kHeads, kKvHeads, dim, 1.0F / std::sqrt(static_cast<float>(dim))};
    Array stored(DType::f32, {sequences, kHeads, count});
    Array scratch(DType::f32, {ops::attention_backward_scratch(shape)});
    const auto q = heads(qkv, row, 0, count);
    const auto k = heads(qkv, row, kHeads, count);
    const auto v = heads(qkv, row, kHeads + kKvHeads, count);
    const auto result = heads(out, row, 0, count);
    table.attention_forward(cpu_stream(), {.shape = shape,
                                           .q = q,
                                           .k = k,
                                           .v = v,
                                           .out = result,
                                           .log_sum_exp = stored,
                                           .document_starts = document_starts});
    table.attention_backward(cpu_stream(), {.shape = shape,
                                            .q = q,
                                            .k = k,
                                            .v = v,
                                            .out = result,
                                            .log_sum_exp = stored,
                                            .dout = heads(dout, row, 0, count),
                                            .dq = heads(gradients, row, 0, count),
                                            .dk = heads(gradients, row, kHeads, count),
                                            .dv = heads(gradients, row, kHeads + kKvHeads, count),
                                            .scratch = scratch,
                                            .document_starts = document_starts});
    for (int64_t i = 0; i < stored.count(); ++i) {
      const int64_t b = i / (kHeads * count);
      const int64_t head = i / count % kHeads;
      const int64_t at = row + b * count + i % count;
      log_sum_exp.set((at / length * kHeads + head) * length + at % length, stored.get(i));
    }
  }

  int64_t dim, width, batch = 0, length = 0;
  std::vector<int32_t> starts;
  Array qkv, dout, out, gradients, log_sum_exp;
};

double largest_difference(const Array& a, const Array& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    const double difference = std::abs(static_cast<double>(a.get(i)) - b.get(i));
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

const Sequences kSequences[] = {{{70, 5, 64, 61}, {200}, {1, 63, 64, 72}},
                                {{3, 1, 1, 9}},
                                {{64, 64}, {128}, {127, 1}},
                                {{17, 30, 100, 16, 1, 1, 90}}};

TEST_CASE("documents of a sequence do not see each other", "[attention][documents]") {
  for (const ops::OpTable* table : cpu_tables()) {
    for (const Sequences& sequences : kSequences) {
      for (const int64_t dim : {16, 40}) {
        Packed packed(sequences, dim, DType::f32);
        Packed alone(sequences, dim, DType::f32);
        const View starts = {
            packed.starts.data(), DType::i32, {static_cast<int64_t>(packed.starts.size())}};
        packed.run(*table, 0, packed.batch, packed.length, starts);
        int64_t row = 0;
        for (const std::vector<int64_t>& documents : sequences) {
          for (const int64_t count : documents) {
            alone.run(*table, row, 1, count, {});
            row += count;
          }
        }
        // Values of order 1 to 10; sums over at most 200 keys in another order.
        CHECK(largest_difference(packed.out, alone.out) < 0x1p-18);
        CHECK(largest_difference(packed.log_sum_exp, alone.log_sum_exp) < 0x1p-18);
        CHECK(largest_difference(packed.gradients, alone.gradients) < 0x1p-15);
      }
    }
  }
}

TEST_CASE("a NaN key of one document stays there", "[attention][documents]") {
  Packed packed({{70, 58}}, 16, DType::bf16);
  packed.qkv.set(30 * packed.width + kHeads * 16, NAN);  // a key
  const View starts = {packed.starts.data(), DType::i32, {128}};
  packed.run(*cpu_tables().back(), 0, 1, 128, starts);
  CHECK(std::isnan(packed.out.get(31 * kHeads * 16)));
  for (int64_t i = 70 * kHeads * 16; i < packed.out.count(); ++i) {
    REQUIRE_FALSE(std::isnan(packed.out.get(i)));
  }
}

TEST_CASE("one document in a sequence changes no bit", "[attention][documents]") {
  Packed masked({{150}, {150}}, 24, DType::f32);
  Packed plain({{150}, {150}}, 24, DType::f32);
  const View starts = {masked.starts.data(), DType::i32, {300}};
  masked.run(*cpu_tables().back(), 0, 2, 150, starts);
  plain.run(*cpu_tables().back(), 0, 2, 150, {});
  CHECK(masked.out.bytes() == plain.out.bytes());
  CHECK(masked.gradients.bytes() == plain.gradients.bytes());
}

TEST_CASE("rotation counts positions from the beginning of a document", "[attention][documents]") {
  const int64_t lengths[] = {3, 1, 5};
  std::vector<int32_t> starts = {0, 0, 0, 3, 4, 4, 4, 4, 4};
  Array table_values(DType::f32, {9, 4}, random_values(36, 5));
  Array sines(DType::f32, {9, 4}, random_values(36, 6));
  Array packed(DType::f32, {9, 16}, random_values(9 * 16, 7));
  Array alone(DType::f32, {9, 16}, random_values(9 * 16, 7));
  const auto rotate = [&](Array& x, int64_t row, int64_t length, ConstView documents) {
    const ops::HeadsView view = {x.as<float>() + row * 16, DType::f32, 16, length};
    ops::rope(cpu_stream(), {.x = view,
                             .batch = 1,
                             .length = length,
                             .heads = 2,
                             .head_dim = 8,
                             .cosines = table_values,
                             .sines = sines,
                             .document_starts = documents});
  };
  rotate(packed, 0, 9, View{starts.data(), DType::i32, {9}});
  int64_t row = 0;
  for (const int64_t length : lengths) {
    rotate(alone, row, length, {});
    row += length;
  }
  CHECK(packed.bytes() == alone.bytes());
}

TEST_CASE("learned positions count from the beginning of a document", "[attention][documents]") {
  std::vector<int32_t> tokens = {2, 0, 1, 1, 2, 2};
  std::vector<int32_t> starts = {0, 0, 2, 2, 2, 5};
  const View token_view = {tokens.data(), DType::i32, {6}};
  const View start_view = {starts.data(), DType::i32, {6}};
  Array table(DType::f32, {3, 2}, {1, 2, 3, 4, 5, 6});
  Array positions(DType::f32, {6, 2}, {10, 10, 20, 20, 30, 30, 40, 40, 50, 50, 60, 60});
  Array y(DType::f32, {6, 2});
  ops::embedding_forward(cpu_stream(), {.tokens = token_view,
                                        .table = table,
                                        .positions = positions,
                                        .sequence_length = 6,
                                        .y = y,
                                        .document_starts = start_view});
  CHECK(y.values() == std::vector<float>{15, 16, 21, 22, 13, 14, 23, 24, 35, 36, 15, 16});
  Array table_grad(DType::f32, {3, 2}, std::vector<float>(6));
  Array position_grad(DType::f32, {6, 2}, std::vector<float>(12));
  Array scratch(DType::i32, {12});
  Array dy(DType::f32, {6, 2}, {1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32});
  ops::embedding_backward(cpu_stream(), {.tokens = token_view,
                                         .dy = dy,
                                         .table_grad = table_grad,
                                         .position_grad = position_grad,
                                         .sequence_length = 6,
                                         .scratch = scratch,
                                         .document_starts = start_view});
  CHECK(position_grad.values() == std::vector<float>{37, 37, 10, 10, 16, 16, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("a share of targets takes the place of the factor", "[loss][documents]") {
  const auto gradient = [](float factor, const float* share) {
    Array logits(DType::f32, {2, 8}, random_values(16, 4));
    std::vector<int32_t> targets = {3, -1};
    Array losses(DType::f32, {2});
    ops::cross_entropy(cpu_stream(), {.logits = logits,
                                      .targets = View{targets.data(), DType::i32, {2}},
                                      .losses = losses,
                                      .gradient_factor = factor,
                                      .target_share = share});
    return logits.values();
  };
  const float share = 0.37F;
  CHECK(gradient(share, nullptr) == gradient(1.0F, &share));
  CHECK(gradient(1.0F, nullptr) != gradient(1.0F, &share));
}

}  // namespace
}  // namespace fp8train::test
