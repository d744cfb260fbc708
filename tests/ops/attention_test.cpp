#include "ops/attention/attention.h"

#include <catch2/catch.hpp>

#include "base/math.h"
#include "ops/reference.h"

namespace fp8train::test {
namespace {

// Soft-max and sums are fp32 and inputs are of order 1: a probability is off by about 2^-22 of
// itself (2^x, the scale in powers of two, the running maximum), a sum over at most 200 keys by 200
// roundings of 2^-24 at worst. Outputs and gradients are of order 1 to 10. bf16 and fp16 only round
// inputs (exactly known to the reference) and results - and `out`, which the backward pass reads,
// adds its own rounding to delta.
constexpr double kForward = 0x1p-18;
constexpr double kBackward = 0x1p-15;

struct Problem {
  int64_t batch, queries, keys, heads, kv_heads, dim;

  ops::AttentionShape shape() const {
    return {batch, queries, keys, heads, kv_heads, dim, 1.0F / std::sqrt(static_cast<float>(dim))};
  }
};

/// q, k and v in one array of fused rows for each; keys in a cache with spare rows when it is
/// longer.
struct Operands {
  Operands(const Problem& p, DType dtype)
      : problem(p),
        capacity(p.keys == p.queries ? p.keys : p.keys + 3),
        q(random(dtype, p.batch * p.queries, q_stride(), 1)),
        kv(random(dtype, p.batch * capacity, kv_stride(), 2)),
        out(dtype, {p.batch * p.queries, p.heads * p.dim}),
        dout(random(dtype, p.batch * p.queries, p.heads * p.dim, 3)),
        dq(dtype, {p.batch * p.queries, q_stride()}),
        dkv(p.keys == p.queries ? dtype : DType::f32, {p.batch * capacity, kv_stride()}),
        log_sum_exp(DType::f32, {p.batch, p.heads, p.queries}),
        scratch(DType::f32, {ops::attention_backward_scratch(p.shape())}) {}

  static Array random(DType dtype, int64_t rows, int64_t columns, uint32_t seed) {
    return Array(dtype, {rows, columns}, random_values(rows * columns, seed));
  }
  int64_t q_stride() const { return problem.heads * problem.dim + 4; }
  int64_t kv_stride() const { return 2 * problem.kv_heads * problem.dim + 6; }
  ops::HeadsView q_view() { return heads_of(q, 2, q_stride(), problem.queries); }
  ops::HeadsView k_view() { return heads_of(kv, 1, kv_stride(), capacity); }
  ops::HeadsView v_view() {
    return heads_of(kv, 1 + problem.kv_heads * problem.dim, kv_stride(), capacity);
  }
  ops::HeadsView out_view(Array& array) {
    return heads_of(array, 0, problem.heads * problem.dim, problem.queries);
  }

  void forward(const ops::OpTable& table) {
    table.attention_forward(cpu_stream(), {.shape = problem.shape(),
                                           .q = q_view(),
                                           .k = k_view(),
                                           .v = v_view(),
                                           .out = out_view(out),
                                           .log_sum_exp = log_sum_exp});
  }
  void backward(const ops::OpTable& table) {
    table.attention_backward(cpu_stream(), {.shape = problem.shape(),
                                            .q = q_view(),
                                            .k = k_view(),
                                            .v = v_view(),
                                            .out = out_view(out),
                                            .log_sum_exp = log_sum_exp,
                                            .dout = out_view(dout),
                                            .dq = heads_of(dq, 2, q_stride(), problem.queries),
                                            .dk = heads_of(dkv, 1, kv_stride(), capacity),
                                            .dv = heads_of(dkv, 1 + problem.kv_heads * problem.dim,
                                                           kv_stride(), capacity),
                                            .scratch = scratch});
  }

  /// Forward and backward of `count` queries from `first` on, which see all keys up to themselves.
  void run(const ops::OpTable& table, int64_t first, int64_t count, ConstView starts) {
    ops::AttentionShape shape = problem.shape();
    shape.query_length = count;
    shape.key_length = first + count;
    const auto from = [first](ops::HeadsView view) {
      view.data = static_cast<char*>(view.data) +
                  static_cast<size_t>(first * view.row_stride) * size_of(view.dtype);
      return view;
    };
    ops::AttentionForward forward = {.shape = shape,
                                     .q = from(q_view()),
                                     .k = k_view(),
                                     .v = v_view(),
                                     .out = from(out_view(out)),
                                     .log_sum_exp = log_sum_exp,
                                     .document_starts = starts};
    table.attention_forward(cpu_stream(), forward);
    table.attention_backward(
        cpu_stream(),
        {.shape = shape,
         .q = forward.q,
         .k = forward.k,
         .v = forward.v,
         .out = forward.out,
         .log_sum_exp = forward.log_sum_exp,
         .dout = from(out_view(dout)),
         .dq = from(heads_of(dq, 2, q_stride(), problem.queries)),
         .dk = heads_of(dkv, 1, kv_stride(), capacity),
         .dv = heads_of(dkv, 1 + problem.kv_heads * problem.dim, kv_stride(), capacity),
         .scratch = scratch,
         .document_starts = starts});
  }

  Problem problem;
  int64_t capacity;
  Array q, kv, out, dout, dq, dkv, log_sum_exp, scratch;
};

struct Reference {
  std::vector<double> out, log_sum_exp, dq, dkv;
};

/// Position of (b, t, head, d) in q, out and kv.
int64_t q_at(const Operands& o, int64_t b, int64_t t, int64_t h, int64_t d) {
  return (b * o.problem.queries + t) * o.q_stride() + 2 + h * o.problem.dim + d;
}
int64_t out_at(const Operands& o, int64_t b, int64_t t, int64_t h, int64_t d) {
  return ((b * o.problem.queries + t) * o.problem.heads + h) * o.problem.dim + d;
}
int64_t k_at(const Operands& o, int64_t b, int64_t t, int64_t h, int64_t d) {
  return (b * o.capacity + t) * o.kv_stride() + 1 + h * o.problem.dim + d;
}
int64_t v_at(const Operands& o, int64_t b, int64_t t, int64_t h, int64_t d) {
  return k_at(o, b, t, h + o.problem.kv_heads, d);
}

/// One row of the attention matrix at a time, forward and (analytic) backward.
void reference_row(const Operands& o, int64_t b, int64_t h, int64_t t, Reference& r) {
  const Problem& p = o.problem;
  const int64_t g = h / (p.heads / p.kv_heads);
  const int64_t visible = p.keys - p.queries + t + 1;
  const double scale = p.shape().scale;
  std::vector<double> s(static_cast<size_t>(visible));
  double max = -INFINITY;
  for (int64_t j = 0; j < visible; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < p.dim; ++d) {
      dot += double(o.q.get(q_at(o, b, t, h, d))) * o.kv.get(k_at(o, b, j, g, d));
    }
    s[size_t(j)] = dot * scale;
    max = std::max(max, s[size_t(j)]);
  }
  double sum = 0;
  for (double& value : s) {
    value = std::exp(value - max);
    sum += value;
  }
  r.log_sum_exp[size_t((b * p.heads + h) * p.queries + t)] = max + std::log(sum);
  std::vector<double> dp(s.size());
  double delta = 0;
  for (int64_t j = 0; j < visible; ++j) {
    double& prob = s[size_t(j)];
    prob /= sum;
    for (int64_t d = 0; d < p.dim; ++d) {
      const double dout = o.dout.get(out_at(o, b, t, h, d));
      const double v = o.kv.get(v_at(o, b, j, g, d));
      r.out[size_t(out_at(o, b, t, h, d))] += prob * v;
      r.dkv[size_t(v_at(o, b, j, g, d))] += prob * dout;
      dp[size_t(j)] += dout * v;
    }
    delta += prob * dp[size_t(j)];
  }
  for (int64_t j = 0; j < visible; ++j) {
    const double ds = s[size_t(j)] * (dp[size_t(j)] - delta) * scale;
    for (int64_t d = 0; d < p.dim; ++d) {
      r.dq[size_t(q_at(o, b, t, h, d))] += ds * o.kv.get(k_at(o, b, j, g, d));
      r.dkv[size_t(k_at(o, b, j, g, d))] += ds * o.q.get(q_at(o, b, t, h, d));
    }
  }
}

Reference reference(const Operands& o) {
  const Problem& p = o.problem;
  Reference r{std::vector<double>(size_t(o.out.count())),
              std::vector<double>(size_t(p.batch * p.heads * p.queries)),
              std::vector<double>(size_t(o.dq.count())),
              std::vector<double>(size_t(o.dkv.count()))};
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t t = 0; t < p.queries; ++t) {
        reference_row(o, b, h, t, r);
      }
    }
  }
  return r;
}

const Problem kProblems[] = {{1, 1, 1, 1, 1, 8},     {2, 37, 37, 3, 3, 8},
                             {1, 64, 64, 4, 2, 64},  {1, 130, 130, 4, 1, 20},
                             {2, 80, 80, 2, 2, 128}, {1, 200, 200, 1, 1, 32},
                             {1, 17, 17, 2, 1, 256}, {1, 40, 40, 2, 1, 512}};

TEST_CASE("attention and its gradients match double precision", "[attention]") {
  for (const ops::OpTable* table : cpu_tables()) {
    for (const FloatType type : kFloatTypes) {
      for (const Problem& p : kProblems) {
        INFO("T " << p.queries << " heads " << p.heads << " kv " << p.kv_heads << " D " << p.dim
                  << " " << name_of(type.dtype));
        Operands o(p, type.dtype);
        o.forward(*table);
        o.backward(*table);
        const Reference want = reference(o);
        const double out_rounding = type.dtype == DType::f32 ? 0 : 2 * type.rounding;
        CHECK(worst_error(o.out, want.out, type.rounding, kForward) <= 1);
        CHECK(worst_error(o.log_sum_exp, want.log_sum_exp, 0, kForward) <= 1);
        // What rounding `out` does to a gradient: delta moves by rounding * sum |out * dout|, about
        // rounding * sqrt(D) here, and the rows of dS it enters sum to 1.
        const double through_delta = out_rounding * std::sqrt(static_cast<double>(p.dim));
        CHECK(worst_error(o.dq, want.dq, type.rounding, kBackward + through_delta) <= 1);
        CHECK(worst_error(o.dkv, want.dkv, type.rounding,
                          kBackward + through_delta * static_cast<double>(p.heads)) <= 1);
      }
    }
  }
}

TEST_CASE("queries at the end of a longer row of keys", "[attention]") {
  const Problem problems[] = {{2, 1, 1, 2, 1, 16},  {2, 1, 37, 4, 2, 64},   {1, 1, 300, 2, 2, 32},
                              {1, 5, 70, 2, 1, 24}, {1, 70, 100, 1, 1, 64}, {1, 65, 129, 2, 2, 8}};
  for (const ops::OpTable* table : cpu_tables()) {
    for (const FloatType type : kFloatTypes) {
      for (const Problem& p : problems) {
        INFO("Tq " << p.queries << " Tk " << p.keys << " " << name_of(type.dtype));
        Operands o(p, type.dtype);
        o.forward(*table);
        o.backward(*table);
        const Reference want = reference(o);
        CHECK(worst_error(o.out, want.out, type.rounding, kForward) <= 1);
        CHECK(worst_error(o.log_sum_exp, want.log_sum_exp, 0, kForward) <= 1);
        const double through_delta = (type.dtype == DType::f32 ? 0 : 2 * type.rounding) *
                                     std::sqrt(static_cast<double>(p.dim));
        CHECK(worst_error(o.dq, want.dq, type.rounding, kBackward + through_delta) <= 1);
        CHECK(worst_error(o.dkv, want.dkv, 0,
                          kBackward + through_delta * static_cast<double>(p.heads)) <= 1);
      }
    }
  }
}

TEST_CASE("chunks of queries have the bits of all, and sums of their gradients of keys",
          "[attention]") {
  for (const ops::OpTable* table : cpu_tables()) {
    for (const int64_t chunks : {2, 4, 8}) {
      for (const int64_t documents : {1, 3}) {
        const int64_t length = 64 * chunks;
        INFO(chunks << " chunks, " << documents << " documents");
        Operands all({2, length, length, 4, 2, 32}, DType::f32);
        Operands parts = all;
        std::vector<int32_t> starts;
        for (int64_t i = 0; i < 2 * length; ++i) {
          const int64_t document = i % length * documents / length;
          starts.push_back(static_cast<int32_t>(ceil_div(document * length, documents)));
        }
        const View begins = {documents == 1 ? nullptr : starts.data(), DType::i32, {2, length}};
        all.run(*table, 0, length, begins);
        std::vector<double> sums(static_cast<size_t>(all.dkv.count()));
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          parts.dkv = Array(DType::f32, {2 * length, all.kv_stride()});
          parts.run(*table, chunk * 64, 64, begins);
          for (size_t i = 0; i < sums.size(); ++i) {
            sums[i] += parts.dkv.get(static_cast<int64_t>(i));
          }
        }
        CHECK(parts.out.bytes() == all.out.bytes());
        CHECK(parts.dq.bytes() == all.dq.bytes());
        double difference = 0;
        double norm = 0;
        for (size_t i = 0; i < sums.size(); ++i) {
          const double value = all.dkv.get(static_cast<int64_t>(i));
          difference += (sums[i] - value) * (sums[i] - value);
          norm += value * value;
        }
        CHECK(std::sqrt(difference / norm) < 1e-6);
      }
    }
  }
}

TEST_CASE("the attention reference's gradients are those of finite differences", "[attention]") {
  Operands o({1, 6, 6, 2, 1, 4}, DType::f32);
  const Reference at = reference(o);
  const auto loss = [&] {
    const Reference r = reference(o);
    double sum = 0;
    for (int64_t i = 0; i < o.dout.count(); ++i) {
      sum += r.out[size_t(i)] * o.dout.get(i);
    }
    return sum;
  };
  const auto difference = [&](Array& array, int64_t i) {
    const float stored = array.get(i);
    const float above = stored + 0x1p-10F;
    const float below = stored - 0x1p-10F;
    array.set(i, above);
    const double high = loss();
    array.set(i, below);
    const double low = loss();
    array.set(i, stored);
    return (high - low) / (double(above) - double(below));
  };
  // Central differences with steps of 2^-10: an error of about 1e-6 of the third derivative.
  for (int64_t i = 0; i < o.q.count(); ++i) {
    CHECK(at.dq[size_t(i)] == Approx(difference(o.q, i)).margin(1e-5));
  }
  for (int64_t i = 0; i < o.kv.count(); ++i) {
    CHECK(at.dkv[size_t(i)] == Approx(difference(o.kv, i)).margin(1e-5));
  }
}

TEST_CASE("attention has the same bits for any number of threads", "[attention]") {
  for (const ops::OpTable* table : cpu_tables()) {
    std::vector<Bits> runs;
    for (const int threads : {1, 2, 3}) {
      set_threads(threads);
      Operands o({3, 150, 150, 4, 2, 24}, DType::f32);
      o.forward(*table);
      o.backward(*table);
      Bits bits;
      for (const Array* array : {&o.out, &o.log_sum_exp, &o.dq, &o.dkv}) {
        bits.add(*array);
      }
      runs.push_back(bits);
    }
    set_threads(default_threads());
    CHECK(runs[0] == runs[1]);
    CHECK(runs[0] == runs[2]);
  }
}

TEST_CASE("scores far apart neither overflow nor vanish", "[attention]") {
  Operands o({1, 70, 70, 1, 1, 8}, DType::f32);
  for (int64_t i = 0; i < o.q.count(); ++i) {
    o.q.set(i, 60.0F * o.q.get(i));
  }
  for (const ops::OpTable* table : cpu_tables()) {
    o.forward(*table);
    const Reference want = reference(o);
    // Scores up to about 500 carry 2^-24 of themselves into the exponent: 3e-5 of a probability.
    CHECK(worst_error(o.out, want.out, 0, 4e-4) <= 1);
    CHECK(worst_error(o.log_sum_exp, want.log_sum_exp, 0x1p-20, 0) <= 1);
  }
}

TEST_CASE("attention refuses what it cannot do", "[attention]") {
  Operands o({1, 4, 4, 3, 2, 8}, DType::f32);
  const auto forward = [&](const Problem& p) {
    ops::attention_forward(cpu_stream(), {.shape = p.shape(),
                                          .q = o.q_view(),
                                          .k = o.k_view(),
                                          .v = o.v_view(),
                                          .out = o.out_view(o.out),
                                          .log_sum_exp = o.log_sum_exp});
  };
  CHECK_THROWS_AS(forward({1, 4, 4, 3, 2, 8}), InternalError);
  CHECK_THROWS_AS(forward({1, 4, 3, 2, 2, 8}), InternalError);
  CHECK_THROWS_AS(forward({1, 5, 5, 2, 2, 8}), InternalError);
  CHECK_THROWS_AS(forward({1, 4, 4, 1, 1, 300}), InternalError);
}

}  // namespace
}  // namespace fp8train::test
