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
