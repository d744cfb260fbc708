// AdamW's cast of the new weight: exact. What it writes is what AdamW and then amax or quantize
// write, to the last bit.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "numeric/bits.h"
#include "ops/adamw_cases.h"

namespace fp8train::test {
namespace {

struct Case {
  int64_t rows, width;
  WeightCast wanted;
  bool skip = false;
};

/// One update of a weight [rows, width], and its cast in the same call or after it.
struct Updated {
  Array weight, gradient, moment1, moment2, copy, codes, transposed;
  float scale = 3.5F, scale_inv = 0.0F, amax = 0.25F;
  ops::QuantizeStatistics statistics = {9, 9, 9};

  explicit Updated(const Case& c)
      : weight(DType::f32, {c.rows, c.width}, random_values(c.rows * c.width, 1, 40.0F)),
        gradient(DType::f32, {c.rows, c.width}, random_values(c.rows * c.width, 2)),
        moment1(DType::f32, {c.rows, c.width}, random_values(c.rows * c.width, 3)),
        moment2(DType::f32, {c.rows, c.width}, std::vector<float>(c.rows * c.width, 0.7F)),
        copy(DType::bf16, {c.rows, c.width}),
        codes(c.wanted.type, {c.rows, c.width}),
        transposed(c.wanted.type, {c.width, c.rows}) {}

  ops::QuantizeSink sink(const WeightCast& wanted) {
    ops::QuantizeSink cast = {.out = {}, .amax = &amax};
    if (wanted.codes || wanted.transposed) {
      cast.out.rowwise.codes = wanted.codes ? codes.view() : View{};
      cast.out.columnwise.codes = wanted.transposed ? transposed.view() : View{};
      set_tensor_cast(cast.out, plain(wanted.type), &scale, &scale_inv);
      cast.statistics = wanted.statistics ? &statistics : nullptr;
    }
    return cast;
  }
  void update(const ops::OpTable& table, const Case& c, const ops::QuantizeSink& cast) {
    const ops::StepControl control = adamw_control(c.skip);
    table.adamw(cpu_stream(),
                {weight.view(), gradient.view(), moment1.view(), moment2.view(), copy, 0.9, 0.95,
                 1e-8, 0.1, cast},
                &control);
  }
  Bits bits() const {
    Bits all;
    for (const Array* array : {&weight, &moment1, &moment2, &copy, &codes, &transposed}) {
      all.add(*array);
    }
    all.add_value(amax);
    all.add_value(scale_inv);
    all.add_value(statistics);
    return all;
  }
};

void check_case(const Case& c) {
  INFO(c.rows << " x " << c.width << ", codes " << c.wanted.codes << c.wanted.transposed
              << ", statistics " << c.wanted.statistics << ", skip " << c.skip);
  const ops::OpTable& table = *cpu_tables().back();
  Updated one(c);
  one.update(table, c, one.sink(c.wanted));
  Updated two(c);
  two.update(table, c, {});
  const ops::QuantizeSink sink = two.sink(c.wanted);
  if (sink.out.empty()) {
    float amax = 0.0F;
    ops::amax(cpu_stream(), two.weight, &amax);
    two.amax = std::max(amax, two.amax);
  } else {
    ops::quantize(cpu_stream(), two.weight, sink.out, sink.amax, sink.statistics);
  }
  CHECK(one.bits() == two.bits());
}

TEST_CASE("AdamW casts the new weight as quantize would", "[ops]") {
  for (const WeightCast& wanted : kWeightCasts) {
    for (const auto& [rows, width] : {std::pair{1, 1}, {3, 128}, {130, 257}, {5, 9001}}) {
      for (const bool skip : {false, true}) {
        check_case({rows, width, wanted, skip});
      }
    }
  }
}

TEST_CASE("AdamW's cast gives the same bits at every level and thread count", "[ops]") {
  const Case c = {201, 200, kWeightCasts[4]};
  REQUIRE(same_everywhere([&](const ops::OpTable& table) {
    Updated run(c);
    run.update(table, c, run.sink(c.wanted));
    return run.bits();
  }));
}

TEST_CASE("codes of a cast weight have its shape", "[ops]") {
  Updated run({4, 8, kWeightCasts[1]});
  Array narrow(DType::e4m3, {8, 4});
  ops::QuantizeSink sink = run.sink(kWeightCasts[1]);
  sink.out.rowwise.codes = narrow;
  const ops::StepControl control = adamw_control(false);
  CHECK_THROWS_AS(ops::adamw(cpu_stream(),
                             {run.weight.view(), run.gradient.view(), run.moment1.view(),
                              run.moment2.view(), run.copy, 0.9, 0.95, 1e-8, 0.1, sink},
                             &control),
                  InternalError);
}

}  // namespace
}  // namespace fp8train::test
