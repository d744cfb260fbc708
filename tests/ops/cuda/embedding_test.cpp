// Embedding: exact, backward too, since every gradient row adds its tokens in order.

#include "ops/pointwise/embedding.h"
#include "numeric/with_type.h"

#include <array>
#include <catch2/catch.hpp>
#include <random>

#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

/// Tokens of which `kinds` differ; one in eleven lies outside the table.
Array tokens_of(int64_t rows, int64_t vocabulary, int64_t kinds) {
  std::mt19937 generator(7);
  Array tokens(DType::i32, {rows});
  for (int64_t i = 0; i < rows; ++i) {
    const auto drawn = static_cast<int64_t>(generator());
    tokens.as<int32_t>()[i] = static_cast<int32_t>(drawn % kinds * (vocabulary / kinds));
    if (i % 11 == 5) {
      tokens.as<int32_t>()[i] =
          i % 2 == 0 ? -1 : static_cast<int32_t>(i % 3 == 0 ? vocabulary : INT32_MAX);
    }
  }
  return tokens;
}

TEST_CASE("embedding_forward is exact", "[cuda][embedding]") {
  constexpr int64_t kRows = 36;
  constexpr int64_t kVocabulary = 20;
  for (const DType type : FloatTypes::kTypes) {
    for (const int64_t columns : {1, 24, 37}) {
      for (const bool positioned : {false, true}) {
        for (const int64_t offset : {0, 1}) {
          INFO(name_of(type) << ", " << columns << " columns from " << offset);
          const Array tokens = tokens_of(kRows, kVocabulary, 10);
          const Array table(DType::f32, {kVocabulary, columns},
                            adversarial_values(kVocabulary * columns, 2));
          const Array positions(DType::f32, {15, columns}, random_values(15 * columns, 3));
          const auto run = [&](Side& side) {
            const View y = side.space(type, {kRows, columns}, offset);
            const View position = side.put(positions, offset);
            ops::embedding_forward(side.stream(),
                                   {.tokens = side.put(tokens),
                                    .table = side.put(table, offset),
                                    .positions = positioned ? ConstView(position) : ConstView(),
                                    .sequence_length = 12,
                                    .position_offset = 3,
                                    .y = y});
            return side.get(y);
          };
          CHECK(same_values(on_cuda(run), on_cpu(run)));
        }
      }
    }
  }
}

TEST_CASE("rows of a table, and rows of what is looked up, are exact", "[cuda][embedding]") {
  constexpr int64_t kRows = 36;
  constexpr int64_t kVocabulary = 20;
  constexpr int64_t kOwn = 8;  // tokens 5 .. 12
  Array starts(DType::i32, {kRows});
  for (int64_t i = 0; i < kRows; ++i) {
    starts.as<int32_t>()[i] = static_cast<int32_t>(i % 12 / 5 * 5);
  }
  for (const DType type : FloatTypes::kTypes) {
    for (const int64_t columns : {24, 37}) {
      for (const bool documents : {false, true}) {
        INFO(name_of(type) << ", " << columns << " columns, documents " << documents);
        const Array tokens = tokens_of(kRows, kVocabulary, 20);
        const Array table(DType::f32, {kOwn, columns}, random_values(kOwn * columns, 2));
        const Array positions(DType::f32, {12, columns}, random_values(12 * columns, 3));
        const Array dy(type, {kRows, columns}, random_values(kRows * columns, 4));
        const auto run = [&](Side& side) {
          const ConstView begins = documents ? ConstView(side.put(starts)) : ConstView();
          const View y = side.space(type, {kRows, columns});
          ops::embedding_forward(side.stream(), {.tokens = side.put(tokens),
                                                 .table = side.put(table),
                                                 .sequence_length = 12,
                                                 .y = y,
                                                 .first_token = 5,
                                                 .vocabulary = kVocabulary});
          const View own = side.space(type, {kOwn, columns});  // rows 7 .. 14: of two sequences
          ops::embedding_forward(side.stream(), {.table = side.put(table),
                                                 .positions = side.put(positions),
                                                 .sequence_length = 12,
                                                 .y = own,
                                                 .document_starts = begins,
                                                 .first_row = 7});
          const View grad = side.put(table);
          const View all = side.put(dy);
          ops::embedding_backward(side.stream(), {.tokens = side.put(tokens),
                                                  .dy = all,
                                                  .table_grad = grad,
                                                  .sequence_length = 12,
                                                  .scratch = side.space(DType::i32, {2 * kRows}),
                                                  .first_token = 5});
          const View position_grad = side.put(positions);
          for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{2, 4}, {7, 9}, {6, 30}}) {
            ops::embedding_backward(side.stream(), {.dy = rows_of(all, begin, count),
                                                    .position_grad = position_grad,
                                                    .sequence_length = 12,
                                                    .document_starts = begins,
                                                    .first_row = begin});
          }
          return std::array{side.get(y), side.get(own), side.get(grad), side.get(position_grad)};
        };
        const auto cuda = on_cuda(run);
        const auto cpu = on_cpu(run);
        for (size_t i = 0; i < cpu.size(); ++i) {
          INFO("result " << i);
          CHECK(same_values(cuda[i], cpu[i]));
        }
      }
    }
  }
}

struct Case {
  int64_t rows, columns, vocabulary, kinds;
  bool positioned = false;
  int64_t offset = 0;
};

void check_backward(const Case& c, DType type) {
  INFO(name_of(type) << ", " << c.rows << " rows of " << c.kinds << " kinds, " << c.columns
                     << " columns from " << c.offset);
  const int64_t sequence = 10;
  const Array tokens = tokens_of(c.rows, c.vocabulary, c.kinds);
  const Array dy(type, {c.rows, c.columns}, random_values(c.rows * c.columns, 4));
  const Array table(DType::f32, {c.vocabulary, c.columns},
                    random_values(c.vocabulary * c.columns, 5));
  const Array positions(DType::f32, {12, c.columns}, random_values(12 * c.columns, 6));
  const auto run = [&](Side& side) {
    const View grad = side.put(table, c.offset);
    const View position_grad = side.put(positions, c.offset);
    ops::embedding_backward(side.stream(), {.tokens = side.put(tokens),
                                            .dy = side.put(dy, c.offset),
                                            .table_grad = grad,
                                            .position_grad = c.positioned ? position_grad : View(),
                                            .sequence_length = sequence,
                                            .scratch = side.space(DType::i32, {2 * c.rows})});
    return std::pair(side.get(grad), side.get(position_grad));
  };
  const auto cuda = on_cuda(run);
  const auto cpu = on_cpu(run);
  CHECK(same_values(cuda.first, cpu.first));
  CHECK(same_values(cuda.second, cpu.second));
}

TEST_CASE("embedding_backward is exact for rare and frequent tokens", "[cuda][embedding]") {
  for (const DType type : FloatTypes::kTypes) {
    check_backward({40, 24, 30, 30}, type);
    check_backward({40, 37, 30, 10, true}, type);
    check_backward({300, 8, 30, 1, true}, type);  // one token: more rows than are looked up at once
    check_backward({129, 1, 7, 2, true, 1}, type);
    check_backward({7, 16, 5, 5, true}, type);  // fewer rows than a sequence
    check_backward({1, 1040, 2, 1}, type);      // more columns than one block has
  }
}

TEST_CASE("embedding_backward sorts more tokens than one tile", "[cuda][embedding]") {
  check_backward({4500, 8, 300, 300}, DType::bf16);
}

TEST_CASE("a NaN stays with its token", "[cuda][embedding][small]") {
  const Case c = {60, 16, 20, 10};
  const Array tokens = tokens_of(c.rows, c.vocabulary, c.kinds);
  const Array dy(DType::bf16, {c.rows, c.columns}, adversarial_values(c.rows * c.columns, 4));
  const auto run = [&](Side& side) {
    const View grad = side.put(Array(DType::f32, {c.vocabulary, c.columns}));
    ops::embedding_backward(side.stream(), {.tokens = side.put(tokens),
                                            .dy = side.put(dy),
                                            .table_grad = grad,
                                            .sequence_length = 10,
                                            .scratch = side.space(DType::i32, {2 * c.rows})});
    return side.get(grad);
  };
  CHECK(same_values(on_cuda(run), on_cpu(run)));
}

}  // namespace
}  // namespace fp8train::test
