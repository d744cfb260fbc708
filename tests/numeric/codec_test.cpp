// Dynamic range expansion of a group, against powers in fp64. Codes are e4m3, whose unit is 2^-3 of
// the value and less: what is read differs from what was written by half of it, divided by the
// exponent, plus the errors of the fp32 powers (measured 2e-6, allowed 1e-5).

#include "numeric/codec.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "numeric/bits.h"

namespace fp8train::test {
namespace {

constexpr double kBound = 448.0 * 448.0 / 2.0;

struct Group {
  std::vector<float> values;
  float amax = 0.0F, smallest = 0.0F;

  explicit Group(std::vector<float> of) : values(std::move(of)) {
    for (const float value : values) {
      const float magnitude = std::fabs(value);
      amax = std::max(amax, magnitude);
      const bool less = smallest == 0.0F || magnitude < smallest;
      smallest = magnitude > 0.0F && less ? magnitude : smallest;
    }
  }
  ScaleExpansion expansion() const { return stored_expansion(amax, smallest, {}); }
};

/// Values that are spread evenly over `binades` below `amax`, of both signs.
Group spread(float amax, double binades, bool with_zeros) {
  std::vector<float> values;
  for (int i = 0; i < 128; ++i) {
    const double power = std::exp2(-binades * i / 127.0);
    values.push_back(static_cast<float>((i % 2 == 0 ? 1.0 : -1.0) * amax * power));
  }
  if (with_zeros) {
    values[5] = 0.0F;
    values[80] = -0.0F;
  }
  return Group(values);
}

double exponent_of(double range) {
  if (range == 1.0) {
    return 1.0;
  }
  const double steps = std::floor(16.0 * std::log2(kBound) / std::log2(range));
  return std::min(steps / 16.0, 16.0);
}

/// Writes and reads a group; the worst error, relative to half a unit of the code.
void check_group(const Group& group) {
  const ScaleExpansion expansion = group.expansion();
  INFO("amax " << group.amax << ", smallest " << group.smallest << ", exponent "
               << expansion.exponent);
  REQUIRE(std::isfinite(expansion.scale));
  REQUIRE(expansion.scale > 0.0F);
  REQUIRE(std::isfinite(expansion.center));
  REQUIRE(expansion.center > 0.0F);
  CHECK(expansion.exponent == exponent_of(double{group.amax} / double{group.smallest}));
  for (const float value : group.values) {
    const float expanded = expand(value, expansion);
    REQUIRE(std::isfinite(expanded));
    const double power =
        std::pow(std::fabs(double{value}) / double{expansion.center}, double{expansion.exponent});
    CHECK(std::fabs(std::fabs(expanded) - power * double{expansion.scale}) <=
          1e-5 * power * double{expansion.scale});
    CHECK(std::signbit(expanded) == std::signbit(value));
    const e4m3 code = encode<e4m3>(expanded);
    const float read = contract(decode(code), expansion, 1.0F / expansion.exponent);
    REQUIRE(std::isfinite(read));
    CHECK(std::signbit(read) == std::signbit(value));
    if (value == 0.0F) {
      CHECK(read == 0.0F);
      continue;
    }
    const double code_value = std::fabs(double{decode(code)});
    const double exact = double{expansion.center} *
                         std::pow(code_value / double{expansion.scale}, 1.0 / expansion.exponent);
    const double least = std::numeric_limits<float>::denorm_min();
    CHECK(std::fabs(std::fabs(read) - std::min(exact, double{kMaxF32})) <= 1e-5 * exact + least);
    const bool normal = std::fabs(expanded) >= 0x1p-6F;
    if (normal && group.amax > 1e-35F) {
      const double unit = (std::pow(1.0 + 1.0 / 16, 1.0 / expansion.exponent) - 1.0) * 1.07;
      CHECK(std::fabs(read - value) <= (unit + 1e-5) * std::fabs(value));
    }
  }
}

TEST_CASE("an expanded group is read as it was written", "[numeric]") {
  for (const float amax : {1.0F, 3e-4F, 1e-30F, 7e-42F, 2e30F, kMaxF32}) {
    for (const double binades : {0.01, 0.5, 3.3, 10.0, 16.5, 17.0, 40.0}) {
      for (const bool with_zeros : {false, true}) {
        const Group group = spread(amax, binades, with_zeros);
        // Subnormal values are few: their range is not what was asked for.
        if (group.smallest > 0.0F) {
          check_group(group);
        }
      }
    }
  }
}

TEST_CASE("an expanded group spreads over all codes", "[numeric]") {
  // The largest value becomes 448, and the smallest at least 448 / B, which has a code.
  for (const double binades : {1.5, 3.3, 10.0, 16.5}) {
    const Group group = spread(0.02F, binades, true);
    const ScaleExpansion expansion = group.expansion();
    CHECK(expand(group.amax, expansion) == Approx(448.0).epsilon(1e-5));
    CHECK(expand(group.smallest, expansion) > 448.0 / kBound * 0.999);
    CHECK(expand(group.smallest, expansion) < 448.0 / kBound * 2.2);
    CHECK(encode<e4m3>(expand(group.smallest, expansion)).bits != 0);
  }
}

TEST_CASE("an expanded range divides the error by about its exponent", "[numeric]") {
  // Ranges of 10^3 and 10, of m and v in a group: exponents 1.625 and 5. The error of e4m3 depends
  // on where in a binade values lie, hence 0.8 of it.
  for (const double binades : {10.0, 3.3}) {
    const Group group = spread(0.5F, binades, false);
    const ScaleExpansion expansion = group.expansion();
    double scaled = 0;
    double expanded = 0;
    for (const float value : group.values) {
      const float factor = 448.0F / group.amax;
      const double plain = double{decode(encode<e4m3>(value * factor))} / double{factor};
      const float code = decode(encode<e4m3>(expand(value, expansion)));
      const double wide = contract(code, expansion, 1.0F / expansion.exponent);
      scaled += std::pow(plain / value - 1.0, 2);
      expanded += std::pow(wide / value - 1.0, 2);
    }
    CHECK(std::sqrt(scaled / expanded) > 0.7 * double{expansion.exponent});
  }
}

TEST_CASE("groups without a range are not expanded", "[numeric]") {
  for (const float value : {1.0F, -3e-30F, 1e-45F, 5e-39F, 3e38F}) {
    for (const bool alone : {false, true}) {
      std::vector<float> values(128, alone ? 0.0F : value);
      values[17] = value;
      const Group group(values);
      CHECK(group.expansion().exponent == 1.0F);
      check_group(group);
      const float code = expand(value, group.expansion());
      CHECK(std::fabs(code) == Approx(448.0));
      CHECK(contract(code, group.expansion(), 1.0F) == Approx(value).epsilon(1e-6));
    }
  }
}

TEST_CASE("a group of zeros has expansion 1, and one that is not finite keeps the old one",
          "[numeric]") {
  const ScaleExpansion old = {3.0F, 2.0F, 0.5F};
  const auto same = [](const ScaleExpansion& a, const ScaleExpansion& b) {
    return a.scale == b.scale && a.exponent == b.exponent && a.center == b.center;
  };
  CHECK(same(stored_expansion(0.0F, 0.0F, old), {1.0F, 1.0F, 1.0F}));
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(same(stored_expansion(infinity, 1.0F, old), old));
  CHECK(same(stored_expansion(nan, 1.0F, old), old));
  CHECK(encode<e4m3>(expand(infinity, old)).bits == 0x7E);  // 448
  CHECK((encode<e4m3>(expand(nan, old)).bits & 0x7F) == 0x7F);
  CHECK(std::isnan(contract(nan, old, 0.5F)));
  CHECK(bits_of(expand(-0.0F, old)) == 0x80000000U);
}

/// Another format of two levels: scales of groups of 64.
struct OtherScales {
  static constexpr int kGroup = 64;
  static constexpr int kBlock = 16;

  float above = 1.0F;
  e4m3 blocks[4] = {};
};

TEST_CASE("each format of two levels has the scales of its groups", "[numeric]") {
  using Both = GroupScalesList<OtherScales, GroupScales>;
  std::vector<size_t> sizes;
  Both::for_each([&](auto scales) { sizes.push_back(sizeof(scales)); });
  for (const int64_t group : {64, 128}) {
    Both::with(group, [&]<typename Scales>(Scales) { CHECK(Scales::kGroup == group); });
    Both::with(group, [&](auto scales) { sizes.push_back(sizeof(scales)); });
  }
  CHECK(sizes == std::vector<size_t>{8, 12, 8, 12});
  const GroupScales wide[2] = {{2.0F, {{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}}, {3.0F}};
  const OtherScales narrow[2] = {{2.0F, {{1}, {2}, {3}, {4}}}, {3.0F}};
  GroupScales to[3] = {{5.0F}, {5.0F}, {5.0F}};
  Both::copy(128, wide, 0, true, to, 1);
  Both::copy(128, wide, 1, false, to, 2);
  CHECK(to[0].above == 5.0F);
  CHECK(to[1].above == 2.0F);
  CHECK(to[1].blocks[7].bits == 8);
  CHECK(to[2].above == 1.0F);
  OtherScales other[3] = {{5.0F}, {5.0F}, {5.0F}};
  Both::copy(64, narrow, 1, true, other, 0);
  Both::copy(64, narrow, 0, true, other, 1);
  CHECK(other[0].above == 3.0F);
  CHECK(other[1].blocks[3].bits == 4);
  CHECK(other[2].above == 5.0F);
}

}  // namespace
}  // namespace fp8train::test
