// AdamW with expanded moments against COAT's kernel as it is restated in NumPy:
// tests/golden/ops/coat_adamw.bin, made by make_coat.py. Codes and exponents are equal; centers are
// where they follow from equal values; scales are within the error of the powers they are made of.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>

#include "numeric/codec.h"
#include "ops/adamw_cases.h"

namespace fp8train::test {
namespace {

constexpr int64_t kGroup = kStoredBlock.columns;

/// Where the program is not the kernel on purpose: make_coat.py has the reasons.
enum Deviation : int32_t { kZero = 1, kTiny = 2, kNarrow = 4 };

/// A group of one moment after an update.
struct Expected {
  int32_t flags = 0;
  float exponent = 0.0F, center = 0.0F, scale = 0.0F;
  std::vector<uint8_t> codes, floored;
};

class Fixture {
 public:
  Fixture() : file_(FP8TRAIN_GOLDEN_DIR "/ops/coat_adamw.bin", std::ios::binary) {
    REQUIRE(file_.good());
  }
  ~Fixture() { CHECK(file_.good()); }

  template <typename T>
  std::vector<T> read(int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    file_.read(reinterpret_cast<char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(T)));
    return values;
  }
  int32_t integer() { return read<int32_t>(1).front(); }

  /// The groups of `count` elements.
  std::vector<Expected> moment(int64_t count, bool second) {
    std::vector<Expected> groups;
    for (int64_t at = 0; at < count; at += kGroup) {
      const int64_t length = std::min(kGroup, count - at);
      Expected group;
      group.flags = integer();
      const std::vector<float> numbers = read<float>(3);
      group.exponent = numbers[0];
      group.center = numbers[1];
      group.scale = numbers[2];
      group.codes = read<uint8_t>(length);
      group.floored = second ? read<uint8_t>(length) : std::vector<uint8_t>();
      groups.push_back(std::move(group));
    }
    return groups;
  }

 private:
  std::ifstream file_;
};

struct Counts {
  int64_t groups = 0, zero = 0, tiny = 0, narrow = 0, below_one = 0, floored = 0;
  int64_t codes = 0, exponents = 0, centers = 0, scales = 0;  ///< that differ
};

bool near(float got, float wanted, float bound) {
  return std::fabs(got - wanted) <= bound * std::fabs(wanted);
}

/// `center_error`: relative, of the center, and twice that of the smallest value.
void count(Array& codes, Array& scales, const std::vector<Expected>& groups, float center_error,
           Counts& counts) {
  size_t at = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Expected& group = groups[i];
    for (const uint8_t code : group.codes) {
      counts.codes += codes.as<uint8_t>()[at++] != code ? 1 : 0;
    }
    for (const uint8_t floored : group.floored) {
      counts.floored += floored;
    }
    const ScaleExpansion got = scales.as<ScaleExpansion>()[i];
    counts.exponents += got.exponent != group.exponent ? 1 : 0;
    counts.centers += !near(got.center, group.center, center_error) ? 1 : 0;
    counts.scales += !near(1.0F / got.scale, group.scale, 1e-5F + center_error) ? 1 : 0;
    ++counts.groups;
    counts.zero += (group.flags & kZero) != 0 ? 1 : 0;
    counts.tiny += (group.flags & kTiny) != 0 ? 1 : 0;
    counts.narrow += (group.flags & kNarrow) != 0 ? 1 : 0;
    counts.below_one += group.exponent < 1.0F ? 1 : 0;
  }
}

void check_equal(const Counts& counts) {
  CHECK(counts.codes == 0);
  CHECK(counts.exponents == 0);
  CHECK(counts.centers == 0);
  CHECK(counts.scales == 0);
}

/// Two expanded moments of a weight that stays where it is.
struct Moments {
  Array weight, codes1, codes2, scales1, scales2;

  explicit Moments(int64_t count)
      : weight(DType::f32, {count}, random_values(count, 1)),
        codes1(DType::e4m3, {count}),
        codes2(DType::e4m3, {count}),
        scales1(fresh(count)),
        scales2(fresh(count)) {}

  static Array fresh(int64_t count) {
    const int64_t scales = stored_scales(expanded(), count);
    return Array(DType::f32, {scales}, std::vector<float>(static_cast<size_t>(scales), 1.0F));
  }
  void step(const ops::OpTable& table, Array& gradient, double beta1, double beta2, int64_t step) {
    ops::StepControl control = adamw_control(false, step);
    control.gradient_factor = 1.0F;
    table.adamw(cpu_stream(),
                {weight.view(), gradient.view(), Encoded(codes1, expanded(), scales1),
                 Encoded(codes2, expanded(), scales2), View{}, beta1, beta2, 1e-8, 0.1},
                &control);
  }
  /// As the fixture has them, so that a difference would be that of one update.
  static void set(Array& codes, Array& scales, const std::vector<Expected>& groups) {
    size_t at = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      std::memcpy(codes.as<uint8_t>() + at, groups[i].codes.data(), groups[i].codes.size());
      at += groups[i].codes.size();
      scales.as<ScaleExpansion>()[i] = {1.0F / groups[i].scale, groups[i].exponent,
                                        groups[i].center};
    }
  }
};

TEST_CASE("expanded moments are those of COAT's kernel", "[ops]") {
  for (const ops::OpTable* table : cpu_tables()) {
    Fixture fixture;
    const int32_t cases = fixture.integer();
    const int32_t updates = fixture.integer();
    const int64_t elements = fixture.integer();
    Counts first, second;
    for (int32_t i = 0; i < cases; ++i) {
      const int64_t length = fixture.integer();
      Array values(DType::f32, {length}, fixture.read<float>(length));
      const std::vector<Expected> m = fixture.moment(length, false);
      const std::vector<Expected> v = fixture.moment(length, true);
      Moments moments(length);
      moments.step(*table, values, 0.0, 0.0, 1);
      INFO("case " << i);
      count(moments.codes1, moments.scales1, m, 0.0F, first);
      count(moments.codes2, moments.scales2, v, 0.0F, second);
    }
    check_equal(first);
    check_equal(second);
    // Of so many groups the kernel would have made something else.
    CHECK(first.groups == 46);
    CHECK(first.zero == 6);
    CHECK(first.tiny == 2);
    CHECK(first.narrow == 7);
    CHECK(first.below_one == 7);
    CHECK(second.zero == 8);
    CHECK(second.tiny == 4);
    CHECK(second.narrow == 7);
    CHECK(second.below_one == 25);
    CHECK(second.floored == 128);

    Moments moments(elements);
    Counts steps;
    for (int32_t step = 1; step <= updates; ++step) {
      Array gradient(DType::bf16, {elements});
      const std::vector<uint16_t> bits = fixture.read<uint16_t>(elements);
      std::memcpy(gradient.as<uint16_t>(), bits.data(), bits.size() * sizeof(uint16_t));
      const std::vector<Expected> m = fixture.moment(elements, false);
      const std::vector<Expected> v = fixture.moment(elements, true);
      moments.step(*table, gradient, 0.9, 0.95, step);
      // The smallest of m is often a difference of two terms that are near each other.
      count(moments.codes1, moments.scales1, m, 2e-4F, steps);
      count(moments.codes2, moments.scales2, v, 1e-5F, steps);
      Moments::set(moments.codes1, moments.scales1, m);
      Moments::set(moments.codes2, moments.scales2, v);
    }
    check_equal(steps);
    CHECK(updates >= 100);
    CHECK(steps.groups == 720);
    CHECK(steps.zero == 172);
    CHECK(steps.tiny == 0);
    CHECK(steps.narrow == 0);
    CHECK(steps.below_one == 216);
    CHECK(steps.floored == 0);
  }
}

}  // namespace
}  // namespace fp8train::test
