#include "ops/pointwise/embedding.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "ops/op_test_support.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

constexpr int64_t kVocabulary = 50;
constexpr int64_t kSequence = 24;
constexpr int64_t kRows = 4 * kSequence;

Array random_tokens() {
  std::mt19937 generator(31);
  Array tokens(DType::i32, {kRows});
  for (int64_t i = 0; i < kRows; ++i) {
    tokens.as<int32_t>()[i] = static_cast<int32_t>(generator() % 7 * 8);  // many repeat
  }
  return tokens;
}

}  // namespace

TEST_CASE("embedding_forward gathers rows and adds positions", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t columns : {int64_t{3}, int64_t{200}, int64_t{257}}) {
      Array tokens = random_tokens();
      Array table(DType::f32, {kVocabulary, columns}, random_values(kVocabulary * columns, 32));
      Array positions(DType::f32, {40, columns}, random_values(40 * columns, 33));
      for (const bool with_positions : {false, true}) {
        Array y(type.dtype, {kRows, columns});
        ops::embedding_forward(cpu_stream(),
                               {.tokens = tokens,
                                .table = table,
                                .positions = with_positions ? ConstView(positions) : ConstView(),
                                .sequence_length = kSequence,
                                .position_offset = 5,
                                .y = y});
        std::vector<float> sums;
        for (int64_t i = 0; i < kRows * columns; ++i) {
          const int64_t row = i / columns;
          const int64_t c = i % columns;
          const float value = table.get(tokens.as<int32_t>()[row] * columns + c);
          const float position = positions.get((5 + row % kSequence) * columns + c);
          sums.push_back(with_positions ? value + position : value);
        }
        REQUIRE(y.bytes() == Array(type.dtype, {kRows, columns}, sums).bytes());
      }
    }
  }
}

TEST_CASE("embedding_backward adds rows to their tokens and positions", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t columns : {int64_t{3}, int64_t{200}, int64_t{257}}) {
      Array tokens = random_tokens();
      Array dy(type.dtype, {kRows, columns}, random_values(kRows * columns, 34));
      const std::vector<float> before = random_values(kVocabulary * columns, 35);
      Array table_grad(DType::f32, {kVocabulary, columns}, before);
      Array position_grad(DType::f32, {40, columns});
      Array scratch(DType::i32, {2 * kRows});
      ops::embedding_backward(cpu_stream(), {.tokens = tokens,
                                             .dy = dy,
                                             .table_grad = table_grad,
                                             .position_grad = position_grad,
                                             .sequence_length = kSequence,
                                             .scratch = scratch});
      // The same order of fp32 additions, so the result is exact.
      Array expected(DType::f32, {kVocabulary, columns}, before);
      Array expected_position(DType::f32, {40, columns});
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t c = 0; c < columns; ++c) {
          const float value = dy.get(row * columns + c);
          expected.as<float>()[tokens.as<int32_t>()[row] * columns + c] += value;
          expected_position.as<float>()[row % kSequence * columns + c] += value;
        }
      }
      REQUIRE(table_grad.bytes() == expected.bytes());
      REQUIRE(position_grad.bytes() == expected_position.bytes());
      REQUIRE(same_everywhere([&](const ops::OpTable& table) {
        Array grad(DType::f32, {kVocabulary, columns}, before);
        table.embedding_backward(cpu_stream(), {.tokens = tokens,
                                                .dy = dy,
                                                .table_grad = grad,
                                                .position_grad = View(),
                                                .sequence_length = kSequence,
                                                .scratch = scratch});
        Bits bits;
        bits.add(grad);
        return bits;
      }));
    }
  }
}

TEST_CASE("ranks that have rows of the table add up to all of it", "[ops]") {
  constexpr int64_t kColumns = 37;
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t ranks : {1, 2, 5}) {
      CAPTURE(name_of(type.dtype), ranks);
      Array tokens = random_tokens();
      tokens.as<int32_t>()[7] = -1;
      tokens.as<int32_t>()[50] = kVocabulary;
      Array table(DType::f32, {kVocabulary, kColumns}, random_values(kVocabulary * kColumns, 32));
      Array positions(DType::f32, {40, kColumns}, random_values(40 * kColumns, 33));
      Array starts(DType::i32, {kRows});
      for (int64_t i = 0; i < kRows; ++i) {
        starts.as<int32_t>()[i] = static_cast<int32_t>(i % kSequence / 9 * 9);
      }
      Array dy(type.dtype, {kRows, kColumns}, random_values(kRows * kColumns, 34));
      Array scratch(DType::i32, {2 * kRows});
      ops::EmbeddingForward whole = {.tokens = tokens,
                                     .table = table,
                                     .positions = positions,
                                     .sequence_length = kSequence,
                                     .document_starts = starts};
      Array expected(type.dtype, {kRows, kColumns});
      whole.y = expected;
      ops::embedding_forward(cpu_stream(), whole);
      Array table_grad(DType::f32, {kVocabulary, kColumns});
      Array expected_grad(DType::f32, {kVocabulary, kColumns});
      Array position_grad(DType::f32, {40, kColumns});
      Array expected_position(DType::f32, {40, kColumns});
      ops::embedding_backward(cpu_stream(), {.tokens = tokens,
                                             .dy = dy,
                                             .table_grad = expected_grad,
                                             .position_grad = expected_position,
                                             .sequence_length = kSequence,
                                             .scratch = scratch,
                                             .document_starts = starts});
      Array sum(DType::f32, {kRows, kColumns});
      const int64_t own = kVocabulary / ranks;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        Array part(DType::f32, {kRows, kColumns});
        ops::embedding_forward(cpu_stream(), {.tokens = tokens,
                                              .table = rows_of(table.view(), rank * own, own),
                                              .sequence_length = kSequence,
                                              .y = part,
                                              .first_token = rank * own,
                                              .vocabulary = kVocabulary});
        for (int64_t i = 0; i < sum.count(); ++i) {
          sum.set(i, sum.get(i) + part.get(i));
        }
        ops::embedding_backward(cpu_stream(),
                                {.tokens = tokens,
                                 .dy = dy,
                                 .table_grad = rows_of(table_grad.view(), rank * own, own),
                                 .sequence_length = kSequence,
                                 .scratch = scratch,
                                 .first_token = rank * own});
      }
      // Own rows of the sum; the second begins and ends within sequences.
      Array y(type.dtype, {kRows, kColumns});
      const int64_t begins[] = {0, 31, 70, kRows};
      for (int i = 0; i < 3; ++i) {
        const int64_t begin = begins[i];
        const int64_t count = begins[i + 1] - begin;
        ops::embedding_forward(cpu_stream(), {.table = rows_of(sum.view(), begin, count),
                                              .positions = positions,
                                              .sequence_length = kSequence,
                                              .y = rows_of(y.view(), begin, count),
                                              .document_starts = starts,
                                              .first_row = begin});
        ops::embedding_backward(cpu_stream(), {.dy = rows_of(dy.view(), begin, count),
                                               .position_grad = position_grad,
                                               .sequence_length = kSequence,
                                               .document_starts = starts,
                                               .first_row = begin});
      }
      CHECK(worst_difference(y, expected, 0, 0) <= 1);
      CHECK(std::isnan(y.get(7 * kColumns)));
      CHECK(std::isnan(y.get(50 * kColumns)));
      CHECK(table_grad.bytes() == expected_grad.bytes());
      CHECK(position_grad.bytes() == expected_position.bytes());
    }
  }
}

TEST_CASE("a token outside the table gives NaN and no gradient", "[ops]") {
  Array tokens(DType::i32, {2});
  tokens.as<int32_t>()[0] = 3;
  tokens.as<int32_t>()[1] = -1;
  Array table(DType::f32, {3, 4}, std::vector<float>(12, 1.0F));
  Array y(DType::bf16, {2, 4});
  ops::embedding_forward(
      cpu_stream(),
      {.tokens = tokens, .table = table, .sequence_length = 2, .position_offset = 0, .y = y});
  for (const float value : y.values()) {
    CHECK(std::isnan(value));
  }
  Array grad(DType::f32, {3, 4});
  Array scratch(DType::i32, {4});
  ops::embedding_backward(
      cpu_stream(),
      {.tokens = tokens, .dy = y, .table_grad = grad, .sequence_length = 2, .scratch = scratch});
  CHECK(grad.values() == std::vector<float>(12, 0.0F));
}
