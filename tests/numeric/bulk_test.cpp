// Bulk conversions have the bits of numeric/convert.h at every CPU level, for any length and
// alignment.

#include "numeric/bulk.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "numeric/convert.h"
#include "numeric/isa_tables.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

std::vector<CpuIsa> levels() {
  std::vector<CpuIsa> found;
  for (const CpuIsa isa : cpu_isas()) {
    if (bulk_kernels_at(isa) != nullptr && isa <= cpu_isa()) {
      found.push_back(isa);
    }
  }
  return found;
}

/// Every pattern of an 8- or 16-bit type; for fp32 a stride over all patterns plus the
/// neighbourhood of both FP8 ranges.
template <typename T>
std::vector<T> all_inputs() {
  std::vector<T> inputs;
  if constexpr (std::is_same_v<T, float>) {
    for (uint64_t bits = 0; bits < (1ULL << 32); bits += 16411) {
      inputs.push_back(float_of(static_cast<uint32_t>(bits)));
    }
    for (uint64_t bits = bits_of(0x1p-26F); bits < bits_of(0x1p17F); bits += 2039) {
      inputs.push_back(float_of(static_cast<uint32_t>(bits)));
      inputs.push_back(-inputs.back());
    }
    for (uint64_t bits = bits_of(0x1p-26F); bits < bits_of(0x1p17F); bits += 1U << 12) {
      inputs.push_back(float_of(static_cast<uint32_t>(bits)));  // ties
    }
  } else {
    for (uint32_t bits = 0; bits < (1U << (8 * sizeof(T))); ++bits) {
      inputs.push_back(T{static_cast<decltype(T::bits)>(bits)});
    }
  }
  return inputs;
}

/// Bit patterns, so that NaN compares by its bits.
template <typename T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

float as_float(float x) {
  return x;
}
template <typename T>
float as_float(T x) {
  return decode(x);
}

template <typename To>
To expected_of(float value) {
  if constexpr (std::is_same_v<To, float>) {
    return value;
  } else {
    return To{static_cast<uint16_t>(bits_of(value) >> 16)};  // FP8 values are exact in bf16
  }
}

template <typename From, typename To>
void check_scaled(ScaledConversion<From, To> convert, float scale) {
  const std::vector<From> inputs = all_inputs<From>();
  std::vector<To> outputs(inputs.size());
  convert.run(inputs.data(), scale, outputs.data(), inputs.size());
  size_t wrong = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const float product = as_float(inputs[i]) * scale;
    if constexpr (std::is_same_v<To, float>) {
      const bool both_nan = is_nan(product) && is_nan(outputs[i]);
      wrong += both_nan || same_bits(product, outputs[i]) ? 0 : 1;
    } else {
      wrong += same_bits(encode<To>(product), outputs[i]) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

template <typename From, typename To>
void check_plain(Conversion<From, To> convert) {
  const std::vector<From> inputs = all_inputs<From>();
  std::vector<To> outputs(inputs.size());
  convert.run(inputs.data(), outputs.data(), inputs.size());
  size_t wrong = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    wrong += same_bits(expected_of<To>(as_float(inputs[i])), outputs[i]) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("bulk encode equals encode at every level", "[numeric]") {
  for (const CpuIsa isa : levels()) {
    const BulkKernels& kernels = *bulk_kernels_at(isa);
    for (const float scale : {1.0F, 3.7F, 0x1p-20F}) {
      CAPTURE(name_of(isa), scale);
      check_scaled<float, bf16>(kernels, scale);
      check_scaled<float, f16>(kernels, scale);
      for_each_type(Fp8Types{}, [&](auto tag) {
        using Code = typename decltype(tag)::Type;
        check_scaled<float, Code>(kernels, scale);
        check_scaled<bf16, Code>(kernels, scale);
      });
    }
  }
}

TEST_CASE("bulk decode equals decode at every level", "[numeric]") {
  for (const CpuIsa isa : levels()) {
    CAPTURE(name_of(isa));
    const BulkKernels& kernels = *bulk_kernels_at(isa);
    check_scaled<bf16, float>(kernels, 0.3F);
    check_scaled<f16, float>(kernels, 0.3F);
    check_plain<bf16, float>(kernels);
    check_plain<f16, float>(kernels);
    for_each_type(Fp8Types{}, [&](auto tag) {
      using Code = typename decltype(tag)::Type;
      check_scaled<Code, float>(kernels, 0.3F);
      check_plain<Code, float>(kernels);
      check_plain<Code, bf16>(kernels);
    });
  }
}

TEST_CASE("bulk decode of int8 is exact at every level", "[numeric]") {
  std::vector<int8_t> codes;
  for (int i = -128; i < 128; ++i) {
    codes.push_back(static_cast<int8_t>(i));
  }
  for (const CpuIsa isa : levels()) {
    CAPTURE(name_of(isa));
    std::vector<float> wide(codes.size());
    std::vector<bf16> narrow(codes.size());
    bulk_kernels_at(isa)->Conversion<int8_t, float>::run(codes.data(), wide.data(), codes.size());
    bulk_kernels_at(isa)->Conversion<int8_t, bf16>::run(codes.data(), narrow.data(), codes.size());
    int wrong = 0;
    for (int i = 0; i < 256; ++i) {
      const auto want = static_cast<float>(i - 128);
      const auto at = static_cast<size_t>(i);
      wrong += wide[at] == want && decode(narrow[at]) == want ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("bulk conversions take any length and alignment and write nothing else", "[numeric]") {
  std::mt19937 random(3);
  std::vector<uint8_t> from(4 * 400 + 8);
  for (uint8_t& byte : from) {
    byte = static_cast<uint8_t>(random());
  }
  for (const CpuIsa isa : levels()) {
    const BulkKernels& kernels = *bulk_kernels_at(isa);
    size_t wrong = 0;
    for (size_t count = 0; count < 140; ++count) {
      const size_t shift = count % 7 + 1;  // elements, so that no vector is aligned
      const auto* floats = reinterpret_cast<const float*>(from.data()) + shift;
      std::vector<e4m3> codes(count + shift + 1, e4m3{0xAA});
      kernels.ScaledConversion<float, e4m3>::run(floats, 2.5F, codes.data() + shift, count);
      wrong += codes[shift - 1].bits == 0xAA && codes[shift + count].bits == 0xAA ? 0 : 1;
      std::vector<float> values(count + shift + 1, -77.0F);
      kernels.ScaledConversion<e4m3, float>::run(codes.data() + shift, 0.5F, values.data() + shift,
                                                 count);
      wrong += values[shift - 1] == -77.0F && values[shift + count] == -77.0F ? 0 : 1;
      std::vector<bf16> wide(count + shift + 1, bf16{0x1234});
      kernels.Conversion<e4m3, bf16>::run(codes.data() + shift, wide.data() + shift, count);
      wrong += wide[shift - 1].bits == 0x1234 && wide[shift + count].bits == 0x1234 ? 0 : 1;
      for (size_t i = 0; i < count; ++i) {
        const e4m3 code = encode<e4m3>(floats[i] * 2.5F);
        const float value = decode(code) * 0.5F;
        wrong += code.bits == codes[shift + i].bits ? 0 : 1;
        wrong += is_nan(value) || value == values[shift + i] ? 0 : 1;
        wrong += wide[shift + i].bits == widen(code).bits ? 0 : 1;
      }
    }
    CAPTURE(name_of(isa));
    CHECK(wrong == 0);
  }
}

TEST_CASE("the public functions reach the kernel of their types", "[numeric]") {
  const float source[3] = {1.3F, -500.0F, 1e-3F};
  e4m3 a[3];
  e5m2 b[3];
  bf16 c[3];
  f16 d[3];
  encode(source, 1.0F, a, 3);
  encode(source, 1.0F, b, 3);
  encode(source, 1.0F, c, 3);
  encode(source, 1.0F, d, 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(a[i].bits == encode<e4m3>(source[i]).bits);
    CHECK(b[i].bits == encode<e5m2>(source[i]).bits);
    CHECK(c[i].bits == encode<bf16>(source[i]).bits);
    CHECK(d[i].bits == encode<f16>(source[i]).bits);
  }
  float plain[4];
  float scaled[4];
  bf16 wide[2];
  decode(a + 1, plain, 1);
  decode(b + 1, plain + 1, 1);
  decode(c + 1, plain + 2, 1);
  decode(d + 1, plain + 3, 1);
  decode(a + 1, 0.5F, scaled, 1);
  decode(b + 1, 0.5F, scaled + 1, 1);
  decode(c + 1, 0.5F, scaled + 2, 1);
  decode(d + 1, 0.5F, scaled + 3, 1);
  const float expected[4] = {-448.0F, -512.0F, -500.0F, -500.0F};
  for (int i = 0; i < 4; ++i) {
    CHECK(plain[i] == expected[i]);
    CHECK(scaled[i] == expected[i] * 0.5F);
  }
  decode(a + 1, wide, 1);
  decode(b + 1, wide + 1, 1);
  CHECK(decode(wide[0]) == -448.0F);
  CHECK(decode(wide[1]) == -512.0F);
  encode(c, 2.0F, a, 3);
  encode(c, 2.0F, b, 3);
  CHECK(a[0].bits == encode<e4m3>(decode(c[0]) * 2.0F).bits);
  CHECK(b[0].bits == encode<e5m2>(decode(c[0]) * 2.0F).bits);
}

TEST_CASE("the best level built and supported is chosen", "[numeric]") {
  for (const CpuIsa machine : cpu_isas()) {
    IsaTables<CpuIsa> all = {};
    for (const CpuIsa& built : cpu_isas()) {
      IsaTables<CpuIsa> one = {};
      all.level[static_cast<int>(built)] = one.level[static_cast<int>(built)] = &built;
      if (built <= machine) {
        CHECK(&best_of(one, machine) == &built);
      } else {
        CHECK_THROWS_AS(best_of(one, machine), ConfigError);
      }
    }
    CHECK(best_of(all, machine) == machine);
  }
}

}  // namespace fp8train
