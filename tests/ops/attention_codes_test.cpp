// Attention in FP8 on the cpu: next to attention of the values that its codes stand for, in double
// precision, which rounds probabilities and the gradients of scores as the plan's roles say, or
// does not round them.

#include <catch2/catch.hpp>
#include <functional>

#include "numeric/convert.h"
#include "numeric/with_type.h"
#include "ops/cast/quantize.h"
#include "ops/reference.h"

namespace fp8train::test {
namespace {

constexpr int64_t kBatch = 2, kLength = 50, kHeads = 4, kKvHeads = 2,
                  kDim = 24;  // one tile of keys
constexpr int64_t kWidth = (kHeads + 2 * kKvHeads) * kDim, kOutWidth = kHeads * kDim;
constexpr float kQkvInv = 0.011F, kDoutInv = 0x1p-9F, kOutScale = 300.0F, kResultScale = 5000.0F;

/// A scalar in memory.
struct Scalars {
  float qkv_inv = kQkvInv, dout_inv = kDoutInv, out_scale = kOutScale, out_inv = 0.0F;
  float p_scale = 448.0F, p_inv = 1.0F / 448.0F, p_amax = 0.0F;
  float ds_scale = 40000.0F, ds_inv = 1.0F / 40000.0F, ds_amax = 0.0F;
  float result_scale = kResultScale, result_inv = 0.0F, amax = 0.0F;
};

double rounded(DType type, double value, float scale) {
  double result = 0.0;
  with_fp8_type(type, [&](auto tag) {
    using Code = typename decltype(tag)::Type;
    result = decode(encode<Code>(static_cast<float>(value) * scale)) / scale;
  });
  return result;
}

/// Codes of random values under a scale.
Array random_codes(DType type, int64_t columns, float inv, uint32_t seed) {
  return {type,
          {kBatch * kLength, columns},
          random_values(kBatch * kLength * columns, seed, 1.0F / inv)};
}

struct Problem {
  DType gradient_type = DType::e5m2;
  Scalars scalars;
  Array qkv = random_codes(DType::e4m3, kWidth, kQkvInv, 1);
  Array dout = random_codes(gradient_type, kOutWidth, kDoutInv, 2);
  Array out{DType::f32, {kBatch * kLength, kOutWidth}};
  Array out_codes{DType::e4m3, {kBatch * kLength, kOutWidth}};
  Array dqkv{DType::f32, {kBatch * kLength, kWidth}};
  Array dqkv_codes{gradient_type, {kBatch * kLength, kWidth}};
  Array log_sum_exp{DType::f32, {kBatch, kHeads, kLength}};

  ops::AttentionShape shape() const {
    return {kBatch, kLength, kLength, kHeads, kKvHeads, kDim, 0.2F};
  }
  ops::HeadsView heads(Array& array, int64_t first) {
    return heads_of(array, first * kDim, array.count() / (kBatch * kLength), kLength);
  }
  ops::AttentionCodes codes(const ops::QuantizeSink& cast) {
    Scalars& s = scalars;
    return {.qkv_inv = &s.qkv_inv,
            .out_inv = &s.out_inv,
            .dout_inv = &s.dout_inv,
            .probabilities = {DType::e4m3, &s.p_scale, &s.p_inv, &s.p_amax},
            .dscores = {gradient_type, &s.ds_scale, &s.ds_inv, &s.ds_amax},
            .cast = cast};
  }
  static ops::QuantizeSink sink(Array& codes, float* scale, float* inv, float* amax) {
    QuantizedTensor out;
    out.rowwise = codes.view();
    out.rowwise.format.policy = ScalePolicy::delayed;
    out.rowwise.cast_scales = scale;
    out.rowwise.tensor_scale = inv;
    return {.out = out, .amax = amax};
  }
  ops::QuantizeSink out_sink() {
    return sink(out_codes, &scalars.out_scale, &scalars.out_inv, &scalars.amax);
  }
  void forward(const ops::QuantizeSink& cast) {
    ops::attention_forward(cpu_stream(), {.shape = shape(),
                                          .q = heads(qkv, 0),
                                          .k = heads(qkv, kHeads),
                                          .v = heads(qkv, kHeads + kKvHeads),
                                          .out = heads(out, 0),
                                          .log_sum_exp = log_sum_exp,
                                          .codes = codes(cast)});
  }
  /// Reads the codes of `out`.
  void backward(const ops::QuantizeSink& cast) {
    Array scratch(DType::f32, {ops::attention_backward_scratch(shape())});
    ops::attention_backward(cpu_stream(), {.shape = shape(),
                                           .q = heads(qkv, 0),
                                           .k = heads(qkv, kHeads),
                                           .v = heads(qkv, kHeads + kKvHeads),
                                           .out = heads(out_codes, 0),
                                           .log_sum_exp = log_sum_exp,
                                           .dout = heads(dout, 0),
                                           .dq = heads(dqkv, 0),
                                           .dk = heads(dqkv, kHeads),
                                           .dv = heads(dqkv, kHeads + kKvHeads),
                                           .scratch = scratch,
                                           .codes = codes(cast)});
  }
};

struct Reference {
  std::vector<double> out = std::vector<double>(kBatch * kLength * kOutWidth);
  std::vector<double> dqkv = std::vector<double>(kBatch * kLength * kWidth);
  double ds_amax = 0.0;
};

/// One query, forward and backward.
void add_query(const Problem& p, bool rounds, int64_t b, int64_t head, int64_t query,
               Reference& r) {
  const auto at = [&](int64_t row, int64_t h, int64_t d) {
    return (b * kLength + row) * kWidth + h * kDim + d;
  };
  const auto x = [&](int64_t row, int64_t h, int64_t d) {
    return static_cast<double>(p.qkv.get(at(row, h, d))) * kQkvInv;
  };
  const int64_t k = kHeads + head / (kHeads / kKvHeads);
  const int64_t v = k + kKvHeads;
  const int64_t row = (b * kLength + query) * kOutWidth + head * kDim;
  const auto dout = [&](int64_t d) { return static_cast<double>(p.dout.get(row + d)) * kDoutInv; };
  const Scalars& s = p.scalars;
  std::vector<double> scores(static_cast<size_t>(query + 1));
  double largest = -INFINITY;
  for (int64_t key = 0; key <= query; ++key) {
    double& score = scores[static_cast<size_t>(key)];
    for (int64_t d = 0; d < kDim; ++d) {
      score += x(query, head, d) * x(key, k, d) * 0.2F;
    }
    largest = std::max(largest, score);
  }
  double sum = 0.0;
  double delta = 0.0;
  for (const double score : scores) {
    sum += std::exp(score - largest);
  }
  for (int64_t d = 0; d < kDim; ++d) {
    double& out = r.out[static_cast<size_t>(row + d)];
    for (int64_t key = 0; key <= query; ++key) {
      const double e = std::exp(scores[static_cast<size_t>(key)] - largest);
      out += (rounds ? rounded(DType::e4m3, e, s.p_scale) : e) / sum * x(key, v, d);
    }
    const double stored = rounds ? rounded(DType::e4m3, out, s.out_scale) : out;
    delta += stored * dout(d);
  }
  for (int64_t key = 0; key <= query; ++key) {
    const double probability = std::exp(scores[static_cast<size_t>(key)] - largest) / sum;
    double gradient = 0.0;
    for (int64_t d = 0; d < kDim; ++d) {
      gradient += dout(d) * x(key, v, d);
    }
    gradient = probability * (gradient - delta) * 0.2F;
    r.ds_amax = std::max(r.ds_amax, std::abs(gradient));
    const double ds = rounds ? rounded(p.gradient_type, gradient, s.ds_scale) : gradient;
    const double code = rounds ? rounded(DType::e4m3, probability, s.p_scale) : probability;
    for (int64_t d = 0; d < kDim; ++d) {
      r.dqkv[static_cast<size_t>(at(query, head, d))] += ds * x(key, k, d);
      r.dqkv[static_cast<size_t>(at(key, k, d))] += ds * x(query, head, d);
      r.dqkv[static_cast<size_t>(at(key, v, d))] += code * dout(d);
    }
  }
}

Reference reference(const Problem& p, bool rounds) {
  Reference r;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t query = 0; query < kLength; ++query) {
        add_query(p, rounds, b, head, query, r);
      }
    }
  }
  return r;
}

struct Error {
  double mean, worst;  ///< of the mean magnitude, and of the largest
};

Error error_of(const Array& got, const std::vector<double>& want) {
  double sum = 0.0;
  double all = 0.0;
  double worst = 0.0;
  double largest = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got.get(static_cast<int64_t>(i)) - want[i]);
    sum += error;
    all += std::abs(want[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    largest = std::max(largest, std::abs(want[i]));
  }
  return {sum / all, worst / largest};
}

}  // namespace

TEST_CASE("attention in FP8 rounds probabilities and the gradients of scores, and nothing else") {
  for (const DType type : {DType::e5m2, DType::e4m3}) {
    Problem p{.gradient_type = type};
    p.scalars.ds_scale = 0.75F * format_max(type);
    p.scalars.ds_inv = 1.0F / p.scalars.ds_scale;
    p.forward(p.out_sink());
    p.backward({});
    const Reference rounds = reference(p, true);
    const Reference exact = reference(p, false);
    CAPTURE(name_of(type));
    // fp32 sums, and seldom another code where a value lies between two of them.
    CHECK(error_of(p.out, rounds.out).mean < 1e-5);
    CHECK(error_of(p.dqkv, rounds.dqkv).mean < 2e-3);
    CHECK(p.scalars.p_amax == 1.0F);
    CHECK(p.scalars.ds_amax == Approx(rounds.ds_amax).epsilon(1e-3));
    // Each rounding is off by up to 2^-4 of a value, in e5m2 by 2^-3.
    for (const auto& [got, want] : {std::pair{&p.out, &exact.out}, {&p.dqkv, &exact.dqkv}}) {
      const Error error = error_of(*got, *want);
      CHECK(error.mean > 1e-3);
      CHECK(error.mean < 0.06);
      CHECK(error.worst < 0.2);
    }
  }
}

TEST_CASE("attention in FP8 writes the codes that a cast makes of its results") {
  Problem p;
  p.forward(p.out_sink());
  const auto check_codes = [](Array& values, Array& codes, float scale, float amax) {
    Array want(codes.dtype(), codes.view().shape);
    float inv = 0.0F;
    float largest = 0.0F;
    ops::quantize(cpu_stream(), values, Problem::sink(want, &scale, &inv, nullptr).out, &largest,
                  nullptr);
    CHECK(codes.bytes() == want.bytes());
    CHECK(amax == largest);
  };
  check_codes(p.out, p.out_codes, kOutScale, p.scalars.amax);
  CHECK(p.scalars.out_inv == 1.0F / kOutScale);
  p.scalars.amax = 0.0F;
  p.backward(
      Problem::sink(p.dqkv_codes, &p.scalars.result_scale, &p.scalars.result_inv, &p.scalars.amax));
  check_codes(p.dqkv, p.dqkv_codes, kResultScale, p.scalars.amax);
}

TEST_CASE("a probability whose code is zero adds nothing") {
  Problem p;
  p.scalars.p_scale = 0x1p-11F;  // below half of the smallest code
  p.scalars.p_inv = 0x1p11F;
  p.forward(p.out_sink());
  for (const float value : p.out.values()) {
    REQUIRE(value == 0.0F);
  }
}

TEST_CASE("attention with half as many queries in FP8 sees the same keys") {
  Problem p;
  p.forward(p.out_sink());
  const std::vector<float> whole = p.out.values();
  ops::AttentionShape shape = p.shape();
  shape.batch = 1;
  shape.query_length = kLength / 2;
  const int64_t first = kLength - shape.query_length;
  const auto from = [&](ops::HeadsView view) {
    view.data = static_cast<char*>(view.data) +
                static_cast<size_t>(first * view.row_stride) * size_of(view.dtype);
    return view;
  };
  ops::attention_forward(cpu_stream(), {.shape = shape,
                                        .q = from(p.heads(p.qkv, 0)),
                                        .k = p.heads(p.qkv, kHeads),
                                        .v = p.heads(p.qkv, kHeads + kKvHeads),
                                        .out = from(p.heads(p.out, 0)),
                                        .log_sum_exp = {},
                                        .codes = p.codes({})});
  CHECK(p.out.values() == whole);
}

}  // namespace fp8train::test
