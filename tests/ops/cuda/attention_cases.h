#pragma once
// Problems of attention on one side (a device) or the other, as layers pose them: queries, keys and
// values are slices of fused rows.

#include <cmath>
#include <string>

#include "ops/attention/attention.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {

struct Problem {
  int64_t batch, queries, keys, heads, kv_heads, dim;
  int64_t spare = 0;      // rows of each sequence's memory beyond its length
  int64_t unaligned = 0;  // elements by which rows miss a multiple of 16 bytes
  bool deterministic = false;

  ops::AttentionShape shape() const {
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    return {batch, queries, keys, heads, kv_heads, dim, scale, deterministic};
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

inline ops::HeadsView slice(const View& rows, int64_t first, int64_t capacity) {
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

inline Forward forward(Side& side, const Problem& p, const Host& host, bool keeps) {
  const Slices in(p, side.put(host.q), side.put(host.kv));
  const View out = side.space(host.q.dtype(), {p.batch * p.queries, p.heads * p.dim});
  const View stored = keeps ? side.space(DType::f32, {p.batch, p.heads, p.queries}) : View{};
  ops::attention_forward(side.stream(), {.shape = p.shape(),
                                         .q = in.q,
                                         .k = in.k,
                                         .v = in.v,
                                         .out = slice(out, 0, p.queries),
                                         .log_sum_exp = stored});
  return {side.get(out), keeps ? side.get(stored) : Array()};
}

/// dq, dk and dv in fused rows like the inputs', with what lies between them untouched. `wide`:
/// gets dk and dv in fp32.
inline Array backward(Side& side, const Problem& p, const Host& host, const Forward& results,
                      Array* wide = nullptr) {
  const View fused = side.put(host.kv);
  const Slices in(p, side.put(host.q), fused);
  const View out = side.put(results.out);
  const View dout = side.put(host.dout);
  const std::vector<float> untouched(static_cast<size_t>(host.kv.count()), 7.0F);
  const View gradients = side.put(Array(host.q.dtype(), fused.shape, untouched));
  const View of_keys =
      wide == nullptr ? gradients : side.put(Array(DType::f32, fused.shape, untouched));
  const Slices d(p, gradients, of_keys);
  const ops::HeadsView out_heads = slice(out, 0, p.queries);
  const ops::HeadsView dout_heads = slice(dout, 0, p.queries);
  const int64_t scratch = ops::attention_backward_scratch(side.stream(), {.shape = p.shape(),
                                                                          .q = in.q,
                                                                          .k = in.k,
                                                                          .v = in.v,
                                                                          .out = out_heads,
                                                                          .dout = dout_heads,
                                                                          .dq = d.q,
                                                                          .dk = d.k,
                                                                          .dv = d.v});
  ops::attention_backward(side.stream(), {.shape = p.shape(),
                                          .q = in.q,
                                          .k = in.k,
                                          .v = in.v,
                                          .out = out_heads,
                                          .log_sum_exp = side.put(results.log_sum_exp),
                                          .dout = dout_heads,
                                          .dq = d.q,
                                          .dk = d.k,
                                          .dv = d.v,
                                          .scratch = side.space(DType::f32, {scratch})});
  if (wide != nullptr) {
    *wide = side.get(of_keys);
  }
  return side.get(gradients);
}

}  // namespace fp8train::test
