// Sequences of several documents on the cuda device against the cpu; tolerances as in
// attention_test.cpp.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/loss/cross_entropy.h"
#include "ops/pointwise/embedding.h"

namespace fp8train::test {
namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;

struct Problem {
  std::vector<std::vector<int64_t>> sequences;
  int64_t dim;
};

std::vector<int32_t> starts_of(const Problem& p) {
  std::vector<int32_t> starts;
  for (const std::vector<int64_t>& documents : p.sequences) {
    int32_t begin = 0;
    for (const int64_t count : documents) {
      starts.insert(starts.end(), static_cast<size_t>(count), begin);
      begin += static_cast<int32_t>(count);
    }
  }
  return starts;
}

View put_ints(Side& side, const std::vector<int32_t>& values) {
  Array array(DType::i32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), array.as<int32_t>());
  return side.put(array);
}

struct Results {
  Array out, log_sum_exp, gradients;
};

/// Of the queries from the nth part of a sequence on.
Results attend(Side& side, const Problem& p, DType dtype, int64_t part = 0) {
  const std::vector<int32_t> starts = starts_of(p);
  const auto batch = static_cast<int64_t>(p.sequences.size());
  const auto rows = static_cast<int64_t>(starts.size());
  const int64_t length = rows / batch;
  const int64_t width = (kHeads + 2 * kKvHeads) * p.dim;
  const int64_t first_query = part == 0 ? 0 : length / part;
  const float scale = 1.0F / std::sqrt(static_cast<float>(p.dim));
  const ops::AttentionShape shape = {batch, length - first_query, length, kHeads, kKvHeads, p.dim,
                                     scale};
  const auto heads = [&](const View& view, int64_t first, int64_t row = 0) {
    const auto offset = static_cast<size_t>(row * view.shape.back() + first * p.dim);
    return ops::HeadsView{static_cast<uint8_t*>(view.data) + offset * size_of(view.dtype),
                          view.dtype, view.shape.back(), length};
  };
  const View qkv = side.put(Array(dtype, {rows, width}, random_values(rows * width, 1)));
  const View dout =
      side.put(Array(dtype, {rows, kHeads * p.dim}, random_values(rows * kHeads * p.dim, 2)));
  const View out = side.put(Array(dtype, {rows, kHeads * p.dim}));
  const View stored = side.space(DType::f32, {batch, kHeads, length - first_query});
  const View documents = put_ints(side, starts);
  ops::attention_forward(side.stream(), {.shape = shape,
                                         .q = heads(qkv, 0, first_query),
                                         .k = heads(qkv, kHeads),
                                         .v = heads(qkv, kHeads + kKvHeads),
                                         .out = heads(out, 0, first_query),
                                         .log_sum_exp = stored,
                                         .document_starts = documents});
  const View gradients = side.put(Array(dtype, {rows, width}));
  ops::AttentionBackward call = {.shape = shape,
                                 .q = heads(qkv, 0, first_query),
                                 .k = heads(qkv, kHeads),
                                 .v = heads(qkv, kHeads + kKvHeads),
                                 .out = heads(out, 0, first_query),
                                 .log_sum_exp = stored,
                                 .dout = heads(dout, 0, first_query),
                                 .dq = heads(gradients, 0, first_query),
                                 .dk = heads(gradients, kHeads),
                                 .dv = heads(gradients, kHeads + kKvHeads),
                                 .document_starts = documents};
  call.scratch = side.space(DType::f32, {ops::attention_backward_scratch(side.stream(), call)});
  ops::attention_backward(side.stream(), call);
  return {side.get(out), side.get(stored), side.get(gradients)};
}

TEST_CASE("documents of a sequence match the cpu", "[cuda][attention][documents]") {
  const Problem problems[] = {{{{70, 5, 64, 61}, {200}, {1, 63, 64, 72}}, 64},
                              {{{3, 1, 1, 9}}, 32},
                              {{{33, 100, 17}}, 128},
                              {{{40, 30}}, 160},
                              {{{17, 30, 5}, {52}}, 20}};
  std::vector<std::pair<Problem, int64_t>> all;
  for (const Problem& p : problems) {
    all.insert(all.end(), {{p, 0}, {p, 2}, {p, 3}});
  }
  for (const FloatType& type : kFloatTypes) {
    for (const auto& [p, part] : all) {
      INFO("D " << p.dim << ", " << name_of(type.dtype) << ", part " << part);
      const bool fp32 = type.dtype == DType::f32;
      const auto run = [&](Side& side) { return attend(side, p, type.dtype, part); };
      const Results want = on_cpu(run);
      const Results got = on_cuda(run);
      CHECK(worst_difference(got.out, want.out, 2 * type.rounding,
                             fp32 ? 0x1p-18 : 5 * type.rounding) <= 1);
      CHECK(worst_difference(got.log_sum_exp, want.log_sum_exp, 0, 0x1p-18) <= 1);
      // Also of `out`, which each side reads as it has rounded it.
      CHECK(worst_difference(got.gradients, want.gradients, 2 * type.rounding,
                             fp32 ? 0x1p-15 : 32 * type.rounding) <= 1);
    }
  }
}

TEST_CASE("positions within documents have the cpu's bits", "[cuda][documents]") {
  const std::vector<int32_t> starts = {0, 0, 0, 3, 4, 4, 0, 1, 1, 1, 1, 5};
  const std::vector<int32_t> tokens = {2, 0, 1, 1, 2, 2, 0, 0, 2, 1, 1, 0};
  for (const int64_t columns : {16, 20}) {
    const auto rotate = [&](Side& side) {
      const View x = side.put(Array(DType::f32, {12, columns}, random_values(12 * columns, 3)));
      ops::rope(
          side.stream(),
          {.x = {x.data, DType::f32, columns, 6},
           .batch = 2,
           .length = 6,
           .heads = 1,
           .head_dim = columns,
           .cosines = side.put(Array(DType::f32, {6, columns / 2}, random_values(3 * columns, 4))),
           .sines = side.put(Array(DType::f32, {6, columns / 2}, random_values(3 * columns, 5))),
           .document_starts = put_ints(side, starts)});
      return side.get(x);
    };
    CHECK(same_values(on_cuda(rotate), on_cpu(rotate)));
    const auto embed = [&](Side& side) {
      const View y = side.space(DType::f32, {12, columns});
      ops::embedding_forward(
          side.stream(),
          {.tokens = put_ints(side, tokens),
           .table = side.put(Array(DType::f32, {3, columns}, random_values(3 * columns, 6))),
           .positions = side.put(Array(DType::f32, {6, columns}, random_values(6 * columns, 7))),
           .sequence_length = 6,
           .y = y,
           .document_starts = put_ints(side, starts)});
      return side.get(y);
    };
    CHECK(same_values(on_cuda(embed), on_cpu(embed)));
    const auto backward = [&](Side& side) {
      const View grad = side.put(Array(DType::f32, {6, columns}, random_values(6 * columns, 8)));
      ops::embedding_backward(
          side.stream(),
          {.tokens = put_ints(side, tokens),
           .dy = side.put(Array(DType::f32, {12, columns}, random_values(12 * columns, 9))),
           .table_grad =
               side.put(Array(DType::f32, {3, columns}, std::vector<float>(size_t(3 * columns)))),
           .position_grad = grad,
           .sequence_length = 6,
           .scratch = side.space(DType::i32, {24}),
           .document_starts = put_ints(side, starts)});
      return side.get(grad);
    };
    CHECK(same_values(on_cuda(backward), on_cpu(backward)));
  }
}

TEST_CASE("a share of targets is read on the device", "[cuda][loss][documents]") {
  const auto gradient = [](Side& side) {
    const View logits = side.put(Array(DType::f32, {2, 8}, random_values(16, 4)));
    ops::cross_entropy(side.stream(), {.logits = logits,
                                       .targets = put_ints(side, {3, -1}),
                                       .losses = side.space(DType::f32, {2}),
                                       .target_share = side.put_value(0.37F)});
    return side.get(logits);
  };
  CHECK(worst_difference(on_cuda(gradient), on_cpu(gradient), 0x1p-20, 0x1p-22) <= 1);
}

}  // namespace
}  // namespace fp8train::test
