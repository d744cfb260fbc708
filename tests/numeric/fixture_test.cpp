// numeric/convert.h against the codes of ml_dtypes and torch (tests/golden/make_numeric.py).

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/input_file.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

std::string fixture(const std::string& name) {
  return read_text_file(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "numeric" / name, 1 << 20);
}

float input_value(bf16*, uint32_t bits) {
  return decode(bf16{static_cast<uint16_t>(bits)});
}
float input_value(f16*, uint32_t bits) {
  return decode(f16{static_cast<uint16_t>(bits)});
}

/// Codes of all 65,536 inputs against a table for the non-negative half. NaN: any NaN code of the
/// same sign.
template <typename Input, typename T>
size_t wrong_codes(const std::string& table_name, bool saturate) {
  const std::string table = fixture(table_name);
  REQUIRE(table.size() == 0x8000);
  size_t wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = input_value(static_cast<Input*>(nullptr), bits);
    const uint32_t sign = bits >> 15 << 7;
    const uint32_t expected = static_cast<uint8_t>(table[bits & 0x7FFF]) | sign;
    const T code = saturate ? encode<T>(x) : encode_no_saturate<T>(x);
    const T other{static_cast<uint8_t>(expected)};
    const bool same = std::isnan(decode(other)) ? std::isnan(decode(code)) : code.bits == expected;
    wrong += same ? 0 : 1;
  }
  return wrong;
}

}  // namespace

TEST_CASE("all bf16 and fp16 inputs give the FP8 codes of ml_dtypes and torch", "[numeric]") {
  CHECK(wrong_codes<bf16, e4m3>("bf16_to_e4m3_sat.bin", true) == 0);
  CHECK(wrong_codes<bf16, e4m3>("bf16_to_e4m3_nosat.bin", false) == 0);
  CHECK(wrong_codes<bf16, e5m2>("bf16_to_e5m2_sat.bin", true) == 0);
  CHECK(wrong_codes<bf16, e5m2>("bf16_to_e5m2_nosat.bin", false) == 0);
  CHECK(wrong_codes<f16, e4m3>("fp16_to_e4m3_sat.bin", true) == 0);
  CHECK(wrong_codes<f16, e4m3>("fp16_to_e4m3_nosat.bin", false) == 0);
  CHECK(wrong_codes<f16, e5m2>("fp16_to_e5m2_sat.bin", true) == 0);
  CHECK(wrong_codes<f16, e5m2>("fp16_to_e5m2_nosat.bin", false) == 0);
}

TEMPLATE_LIST_TEST_CASE("all FP8 codes have the values of ml_dtypes", "[numeric]", Fp8Types) {
  const std::string name(name_of(dtype_of<TestType>()));
  const std::string table = fixture("values_" + name + ".bin");
  REQUIRE(table.size() == 1024);
  for (uint32_t code = 0; code < 256; ++code) {
    float expected = 0;
    std::memcpy(&expected, table.data() + 4 * code, 4);
    const float value = decode(TestType{static_cast<uint8_t>(code)});
    REQUIRE(std::isnan(value) == std::isnan(expected));
    REQUIRE((std::isnan(value) || bits_of(value) == bits_of(expected)));
  }
}

TEST_CASE("random fp32 values give the codes of numpy, ml_dtypes and torch", "[numeric]") {
  const std::string table = fixture("sample.bin");
  constexpr size_t kRecord = 10;
  REQUIRE(table.size() == 4096 * kRecord);
  size_t wrong = 0;
  for (size_t i = 0; i < 4096; ++i) {
    const char* record = table.data() + i * kRecord;
    float x = 0;
    uint16_t halves[2];
    std::memcpy(&x, record, 4);
    std::memcpy(halves, record + 4, 4);
    const auto code_e4m3 = static_cast<uint8_t>(record[8]);
    const auto code_e5m2 = static_cast<uint8_t>(record[9]);
    const bool same = encode<bf16>(x).bits == halves[0] &&
                      encode_no_saturate<f16>(x).bits == halves[1] &&
                      encode_no_saturate<e4m3>(x).bits == code_e4m3 &&
                      encode_no_saturate<e5m2>(x).bits == code_e5m2;
    wrong += same ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace fp8train
