// Codes that ranks add under scales that they share, against small sums written down by hand.

#include "ops/exchange/shared_wire.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/adamw_cases.h"
#include "ops/op_test_support.h"
#include "ops/storage/storage.h"

namespace fp8train::test {
namespace {

TEST_CASE("shared scales: the largest amax of all ranks", "[wire][shared]") {
  const float nan = std::nanf("");
  Array amax(DType::f32, {2, 4}, {3, 0, 1, nan, 100, 0, INFINITY, 1});
  Array scales(DType::f32, {4});
  ops::shared_scales(cpu_stream(), amax, by_tensor(DType::e4m3, ScaleType::pow2), 0.5F, scales);
  CHECK(scales.get(0) == 2.0F);  // 448 / 100 = 4.48
  CHECK(scales.get(1) == 0.5F);
  CHECK(std::isnan(scales.get(2)));
  CHECK(std::isnan(scales.get(3)));
  ops::shared_scales(cpu_stream(), amax, by_tensor(DType::e4m3, ScaleType::f32), 1.0F, scales);
  CHECK(scales.get(0) == 448.0F / 100.0F);
  for (const ScaleType type : {ScaleType::e8m0, ScaleType::e4m3}) {
    CHECK_THROWS_WITH(
        ops::shared_scales(cpu_stream(), amax, by_tensor(DType::e4m3, type), 1.0F, scales),
        Catch::Contains("fp32 or pow2 scales"));
  }
}

TEST_CASE("sum_shared: every partial sum is rounded", "[wire][shared]") {
  // 16 + 1 is a tie in e4m3, whose even neighbour is 16: a small addend is swallowed each time.
  Array codes(DType::e4m3, {4, 2}, {16, 1, 1, 1, 1, 1, 1, 1});
  Array y(DType::e4m3, {2});
  ops::sum_shared(cpu_stream(), codes, y);
  CHECK(y.get(0) == 16);
  CHECK(y.get(1) == 4);
  Array large(DType::e4m3, {2, 2}, {448, -448, 448, -1});
  ops::sum_shared(cpu_stream(), large, y);
  CHECK(y.get(0) == 448);  // saturates
  CHECK(y.get(1) == -448);
}

/// Addresses of controllers as operations take them.
template <size_t N>
ConstView addresses(ops::AutoScale* (&controllers)[N]) {
  return {controllers, DType::i64, {static_cast<int64_t>(N)}};
}

TEST_CASE("a controller's factor takes the place of the factor of shared scales",
          "[wire][shared]") {
  Array amax(DType::f32, {2, 3}, {3, 0, 448, 100, 0, 1});
  Array scales(DType::f32, {3});
  ops::AutoScale halves = {.factor = 0.5F};
  ops::AutoScale grows = {.factor = 3.9F};
  ops::AutoScale* controllers[] = {&halves, &halves, &grows};
  const float one_of_two = std::sqrt(0.5F);
  ops::shared_scales(cpu_stream(), amax, by_tensor(DType::e4m3, ScaleType::pow2), one_of_two,
                     scales, addresses(controllers));
  CHECK(scales.get(0) == 4.0F * 0.25F);  // 448 / 100 = 4.48; 0.5 / sqrt(2) = 0.35
  CHECK(scales.get(1) == 0.25F);
  CHECK(scales.get(2) == 1.0F * 2.0F);  // 3.9 / sqrt(2) = 2.76
}

TEST_CASE("codes at the maximum are counted for their tensor", "[wire][shared]") {
  std::vector<float> values(300, 1.0F);
  values[0] = 448.0F;
  values[127] = -448.0F;
  values[128] = 416.0F;
  values[255] = 448.0F;
  values[299] = std::nanf("");
  Array codes(DType::e4m3, {300}, values);
  Array names(DType::i32, {3});
  names.as<int32_t>()[0] = 1;
  names.as<int32_t>()[1] = 0;
  names.as<int32_t>()[2] = 1;
  ops::AutoScale first = {.factor = 1.0F, .at_maximum = 5};
  ops::AutoScale second;
  ops::AutoScale* controllers[] = {&first, &second};
  ops::count_largest(cpu_stream(), codes, names, addresses(controllers));
  CHECK(first.at_maximum == 6);
  CHECK(second.at_maximum == 2);
}

TEST_CASE("counters of all ranks make the next factor", "[wire][shared]") {
  // 1 of 100000 codes is not more than 1e-5 of them; 1 on each of two ranks is.
  ops::AutoScale scales[] = {{.factor = 0.25F, .at_maximum = 1, .elements = 100000},
                             {.factor = 0.25F, .at_maximum = 1, .elements = 100000},
                             {.factor = 65536.0F, .at_maximum = 0, .elements = 100}};
  const ops::AutoScale of_ranks[] = {scales[0],
                                     scales[1],
                                     scales[2],
                                     {.factor = 0.25F, .at_maximum = 0, .elements = 100000},
                                     {.factor = 0.25F, .at_maximum = 1, .elements = 100000},
                                     {.factor = 65536.0F, .at_maximum = 0, .elements = 100}};
  const int32_t skip = 1;
  const int32_t progress = 0;
  ops::update_auto_scales(cpu_stream(), of_ranks, 2, scales, 3, &progress);
  CHECK(scales[0].factor == Approx(0.25 * std::exp2(0.001)).epsilon(1e-7));
  CHECK(scales[1].factor == 0.125F);
  CHECK(scales[2].factor == 65536.0F);
  scales[1].at_maximum = 7;
  ops::update_auto_scales(cpu_stream(), of_ranks, 2, scales, 3, &skip);
  CHECK(scales[1].factor == 0.125F);
  for (const ops::AutoScale& scale : scales) {
    CHECK(scale.at_maximum == 0);
  }
}

}  // namespace
}  // namespace fp8train::test
