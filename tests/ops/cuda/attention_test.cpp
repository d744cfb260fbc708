// Attention and its gradients on the cuda device against the cpu device.
//
// Tolerances. fp32: another order of sums and another 2^x, as far from exact as the cpu's own test
// allows (2^-18 forward, 2^-15 backward, for values of order 1 to 10). bf16 and fp16: both devices
// round the result (`rounding` is half a unit in the last place, relative), and tensor cores take
// the probabilities, or the gradients of the scores, rounded to the element type, where the cpu
// keeps fp32. A row of probabilities sums to 1, so this moves an output by at most rounding * max
// |v|, and |v| stays below 5. A gradient sums rounded terms over keys or queries: |dS| is at most P
// |dP - delta|, whose second factor is of order sqrt(D) = 1 / scale, so that dQ and dK move by
// rounding * sum of P times about |q| or |k| times |N(0, 1)|; the columns of P sum to several (ln
// T) and over the heads of a group.

#include "ops/attention.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

struct Problem {
  int64_t batch, queries, keys, heads, kv_heads, dim;
  int64_t spare = 0;      // rows of each sequence's memory beyond its length
  int64_t unaligned = 0;  // elements by which rows miss a multiple of 16 bytes

  ops::AttentionShape shape() const {
    return {batch, queries, keys, heads, kv_heads, dim, 1.0F / std::sqrt(static_cast<float>(dim))};
  }
  int64_t width() const { return (heads + 2 * kv_heads) * dim; }
  int64_t stride() const { return width() + unaligned; }
  std::string text() const {
    return "B " + std::to_string(batch) + ", Tq " + std::to_string(queries) + ", Tk " +
           std::to_string(keys) + ", H " + std::to_string(heads) + " / " +
           std::to_string(kv_heads) + ", D " + std::to_string(dim) + ", spare " +
           std::to_string(spare) + ", unaligned " + std::to_string(unaligned);
  }
};

/// Arrays of one problem: q, k and v as slices of fused rows, or of a cache when it is longer.
struct Host {
  Host(const Problem& p, DType dtype)
      : q(dtype, {p.batch * (p.queries + p.spare), p.stride()},
          random_values(p.batch * (p.queries + p.spare) * p.stride(), 1)),
        kv(dtype, {p.batch * (p.keys + p.spare), p.stride()},
           random_values(p.batch * (p.keys + p.spare) * p.stride(), 2)),
        dout(dtype, {p.batch * p.queries, p.heads * p.dim},
             random_values(p.batch * p.queries * p.heads * p.dim, 3)) {
    // What lies beyond a sequence must not matter.
    for (int64_t row = 0; row < p.batch * (p.keys + p.spare); ++row) {
      for (int64_t i = 0; row % (p.keys + p.spare) >= p.keys && i < p.stride(); ++i) {
        kv.set(row * p.stride() + i, NAN);
      }
    }
  }
  Array q, kv, dout;
};

ops::HeadsView slice(const View& rows, int64_t first, int64_t capacity) {
  return {static_cast<uint8_t*>(rows.data) + static_cast<size_t>(first) * size_of(rows.dtype),
          rows.dtype, rows.shape.back(), capacity};
}

/// The three slices of fused rows; queries may come from rows of their own.
struct Slices {
  Slices(const Problem& p, const View& q_rows, const View& kv_rows)
      : q(slice(q_rows, 0, p.queries + p.spare)),
        k(slice(kv_rows, p.heads * p.dim, p.keys + p.spare)),
        v(slice(kv_rows, (p.heads + p.kv_heads) * p.dim, p.keys + p.spare)) {}
  ops::HeadsView q, k, v;
};

struct Forward {
  Array out, log_sum_exp;
};

Forward forward(Side& side, const Problem& p, const Host& host, bool keeps) {
  const Slices in(p, side.put(host.q), side.put(host.kv));
  const View out = side.space(host.q.dtype(), {p.batch * p.queries, p.heads * p.dim});
  const View kept = keeps ? side.space(DType::f32, {p.batch, p.heads, p.queries}) : View{};
  ops::attention_forward(side.stream(), p.shape(), in.q, in.k, in.v, slice(out, 0, p.queries),
                         kept);
  return {side.get(out), keeps ? side.get(kept) : Array()};
}

/// dq, dk and dv in fused rows like the inputs', with what lies between them untouched.
Array backward(Side& side, const Problem& p, const Host& host, const Forward& results) {
  const View fused = side.put(host.kv);
  const Slices in(p, side.put(host.q), fused);
  const View out = side.put(results.out);
  const View dout = side.put(host.dout);
  const View gradients = side.put(Array(
      host.q.dtype(), fused.shape, std::vector<float>(static_cast<size_t>(host.kv.count()), 7.0F)));
  const Slices d(p, gradients, gradients);
  ops::attention_backward(side.stream(), p.shape(), in.q, in.k, in.v, slice(out, 0, p.queries),
                          side.put(results.log_sum_exp), slice(dout, 0, p.queries), d.q, d.k, d.v,
                          side.space(DType::f32, {ops::attention_backward_scratch(p.shape())}));
  return side.get(gradients);
}

void check_forward(const Problem& p, const FloatType& type, const Host& host) {
  const Forward want = on_cpu([&](Side& side) { return forward(side, p, host, true); });
  const Forward got = on_cuda([&](Side& side) { return forward(side, p, host, true); });
  const bool fp32 = type.dtype == DType::f32;
  CHECK(worst_difference(got.out, want.out, 2 * type.rounding,
                         fp32 ? 0x1p-18 : 5 * type.rounding) <= 1);
  CHECK(worst_difference(got.log_sum_exp, want.log_sum_exp, 0, 0x1p-18) <= 1);
  const Forward bare = on_cuda([&](Side& side) { return forward(side, p, host, false); });
  CHECK(same_values(bare.out, got.out));
}

void check_both(const Problem& p, const FloatType& type) {
  INFO(p.text() << ", " << name_of(type.dtype));
  const Host host(p, type.dtype);
  check_forward(p, type, host);
  const Forward results = on_cpu([&](Side& side) { return forward(side, p, host, true); });
  const auto run = [&](Side& side) { return backward(side, p, host, results); };
  const Array got = on_cuda(run);
  const auto group = static_cast<double>(p.heads / p.kv_heads);
  CHECK(worst_difference(got, on_cpu(run), 2 * type.rounding,
                         type.dtype == DType::f32 ? 0x1p-15 : 8 * group * type.rounding) <= 1);
  CHECK(same_values(got, on_cuda(run)));
}

TEST_CASE("attention and its gradients match the cpu", "[cuda][attention]") {
  const Problem problems[] = {
      {2, 1, 1, 2, 1, 64},         {2, 5, 5, 4, 1, 16},          {1, 33, 33, 2, 2, 32, 3},
      {2, 64, 64, 2, 1, 64, 2},    {1, 130, 130, 2, 1, 64},      {1, 130, 130, 1, 1, 128},
      {1, 70, 70, 4, 1, 80, 1},    {1, 65, 65, 2, 2, 128, 0, 8}, {1, 40, 40, 1, 1, 256},
      {2, 35, 35, 4, 2, 40, 1, 1}, {1, 66, 66, 1, 1, 36, 2, 3},  {1, 4, 4, 40, 1, 8}};
  for (const FloatType& type : kFloatTypes) {
    for (const Problem& p : problems) {
      check_both(p, type);
    }
  }
}

TEST_CASE("queries at the end of a cache match the cpu", "[cuda][attention]") {
  const Problem problems[] = {{2, 1, 1, 2, 1, 64, 5},    {2, 1, 37, 4, 2, 64, 11},
                              {1, 5, 130, 2, 1, 80, 2},  {1, 33, 70, 1, 1, 128, 1},
                              {1, 1, 300, 4, 1, 128, 1}, {1, 7, 100, 2, 1, 20, 3, 1}};
  for (const FloatType& type : kFloatTypes) {
    for (const Problem& p : problems) {
      INFO(p.text() << ", " << name_of(type.dtype));
      check_forward(p, type, Host(p, type.dtype));
    }
  }
}

TEST_CASE("scores far apart match the cpu", "[cuda][attention]") {
  const Problem p = {1, 70, 70, 1, 1, 64};
  for (const FloatType& type : kFloatTypes) {
    INFO(name_of(type.dtype));
    Host host(p, type.dtype);
    for (int64_t i = 0; i < host.q.count(); ++i) {
      host.q.set(i, 60.0F * host.q.get(i));
    }
    const Forward want = on_cpu([&](Side& side) { return forward(side, p, host, true); });
    const Forward got = on_cuda([&](Side& side) { return forward(side, p, host, true); });
    // Scores up to about 300 carry 2^-22 of themselves (sums in another order) into the exponent.
    CHECK(worst_difference(got.out, want.out, 2 * type.rounding, 4e-4 + 5 * type.rounding) <= 1);
    CHECK(worst_difference(got.log_sum_exp, want.log_sum_exp, 0x1p-20, 0x1p-18) <= 1);
  }
}

TEST_CASE("a NaN or an infinity reaches the queries that see it", "[cuda][attention]") {
  const Problem p = {1, 70, 70, 1, 1, 64};
  for (const FloatType& type : kFloatTypes) {
    for (const float value : {NAN, INFINITY}) {
      INFO(name_of(type.dtype) << " " << value);
      Host host(p, type.dtype);
      host.kv.set(40 * p.stride() + p.dim + 3, value);
      const Forward got = on_cuda([&](Side& side) { return forward(side, p, host, true); });
      for (int64_t t = 0; t < p.queries; ++t) {
        // -infinity as a score is a probability of 0.
        const bool harmed = t >= 40 && (std::isnan(value) || host.q.get(t * p.stride() + 3) > 0);
        CHECK(std::isnan(got.out.get(t * p.dim)) == harmed);
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
