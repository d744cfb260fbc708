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

#include "ops/attention/attention.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/cuda/attention_cases.h"

namespace fp8train::test {
namespace {

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
  Array wide;  // gradients of keys that ranks add up
  Array* const of_keys = p.keys > p.queries ? &wide : nullptr;
  const auto run = [&](Side& side) { return backward(side, p, host, results, of_keys); };
  const auto group = static_cast<double>(p.heads / p.kv_heads);
  const double absolute = type.dtype == DType::f32 ? 0x1p-15 : 8 * group * type.rounding;
  const Array want = on_cpu(run);
  const Array want_wide = wide;
  const Array got = on_cuda(run);
  CHECK(worst_difference(got, want, 2 * type.rounding, absolute) <= 1);
  if (of_keys != nullptr) {
    CHECK(worst_difference(wide, want_wide, 0, absolute) <= 1);
  }
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

TEST_CASE("queries at the end of a cache match the cpu", "[cuda][attention][small]") {
  const Problem problems[] = {{2, 1, 1, 2, 1, 64, 5},    {2, 1, 37, 4, 2, 64, 11},
                              {1, 5, 130, 2, 1, 80, 2},  {1, 33, 70, 1, 1, 128, 1},
                              {1, 1, 300, 4, 1, 128, 1}, {1, 7, 100, 2, 1, 20, 3, 1},
                              {2, 96, 224, 4, 2, 64, 0}};
  for (const FloatType& type : kFloatTypes) {
    for (const Problem& p : problems) {
      check_both(p, type);
    }
  }
}

TEST_CASE("scores far apart match the cpu", "[cuda][attention][small]") {
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
