#pragma once
// Reading tests/golden/ops/*.txt, and the inputs that tests/golden/cast_inputs.py makes.

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <sstream>

#include "numeric/bits.h"
#include "ops/cast/quantize.h"
#include "ops/op_test_support.h"
#include "support/files.h"

namespace fp8train::test {

inline std::vector<std::istringstream> lines_that_begin_with(
    const std::string& word, const std::string& name = "quantizers.txt") {
  std::ifstream file(FP8TRAIN_GOLDEN_DIR "/ops/" + name);
  REQUIRE(file.good());
  std::vector<std::istringstream> lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream stream(line);
    std::string first;
    stream >> first;
    if (first == word) {
      lines.push_back(std::move(stream));
    }
  }
  return lines;
}

inline std::string fingerprint(const void* data, size_t bytes) {
  uint64_t result = 0xCBF29CE484222325U;
  for (size_t i = 0; i < bytes; ++i) {
    result = (result ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3U;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(result));
  return text;
}

/// cast_inputs.py: bf16 bits of one element.
inline uint16_t adversarial_bits(char kind, uint32_t word, int64_t column) {
  const uint32_t exponent = (word >> 7) & 0xFFU;
  const uint32_t sign = word & 0x8000U;
  const auto with = [&](uint32_t field) { return (word & 0x807FU) | field << 7; };
  switch (kind) {
    case '0':
      return static_cast<uint16_t>(sign);
    case '1':
      return static_cast<uint16_t>(with(0));
    case '2':
      return static_cast<uint16_t>(with(240 + exponent % 15));
    case '3':
      return static_cast<uint16_t>(with(column == 5 ? 200 : 100 + exponent % 30));
    case '4':
      return static_cast<uint16_t>(with(1 + exponent % 20));
    case '5':
      return static_cast<uint16_t>(with(100 + exponent % 50));
    case '6':
      return static_cast<uint16_t>(sign | (90 + exponent % 70) << 7);
    case '7':
      return static_cast<uint16_t>(sign | 0x7FU | (90 + exponent % 70) << 7);
    case '8':
      return static_cast<uint16_t>(column % 9 == 4 ? sign | 0x7F80U : with(120 + exponent % 9));
    default:
      return static_cast<uint16_t>(column % 50 == 7 ? 0x7FC0U : with(120 + exponent % 9));
  }
}

/// "spread.256.384", "adversarial.8.64.3", "real.128.256": the embedding of stories260K, the first
/// tensor of its file.
inline Array input_of(const std::string& name) {
  std::istringstream stream(name);
  std::string kind, rows_text, columns_text, kinds;
  std::getline(stream, kind, '.');
  std::getline(stream, rows_text, '.');
  std::getline(stream, columns_text, '.');
  std::getline(stream, kinds, '.');
  const int64_t rows = std::stoll(rows_text);
  const int64_t columns = std::stoll(columns_text);
  if (kind == "real") {
    Array x(DType::f32, {rows, columns});
    std::ifstream file(FP8TRAIN_GOLDEN_DIR "/run/stories260K/model.safetensors", std::ios::binary);
    uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof(header));
    file.seekg(static_cast<std::streamoff>(header), std::ios::cur);
    file.read(x.as<char>(), static_cast<std::streamsize>(x.bytes().size()));
    REQUIRE(file.good());
    return x;
  }
  Array x(DType::bf16, {rows, columns});
  uint32_t state = 12345;
  for (int64_t i = 0; i < x.count(); ++i) {
    state = state * 1664525U + 1013904223U;
    const uint32_t word = state >> 16;
    x.as<uint16_t>()[i] =
        kind == "spread" ? static_cast<uint16_t>((word & 0x807FU) | (100U + (word >> 7) % 50U) << 7)
                         : adversarial_bits(kinds[static_cast<size_t>(i / columns) % kinds.size()],
                                            word, i % columns);
  }
  return x;
}

inline TensorFormat format_of(const std::string& dtype, const std::string& granularity,
                              const std::string& scale) {
  using namespace per;
  TensorFormat format;
  format.policy = ScalePolicy::current;
  format.dtype = dtype == "e4m3" ? DType::e4m3 : DType::e5m2;
  const std::map<std::string, ScaleBlock> granularities = {{"tensor", tensor},
                                                           {"row", row},
                                                           {"1x32", block_1x32},
                                                           {"1x128", block_1x128},
                                                           {"128x128", block_128x128}};
  format.block = granularities.at(granularity);
  format.scale_type = std::ranges::find(kScaleTypeFacts, scale, &ScaleTypeFacts::name)->type;
  return format;
}

inline float float_of_hex(const std::string& text) {
  return float_of(static_cast<uint32_t>(std::stoul(text, nullptr, 16)));
}

/// A cast of a whole tensor with the scale that follows from it.
struct CurrentCast {
  Array codes;
  float scale = 0.0F;
  float scale_inv = 0.0F;
};

inline CurrentCast cast_with_current_scale(Array& x, const TensorFormat& format) {
  CurrentCast cast = {.codes = Array(format.dtype, {x.count()})};
  float amax = 0.0F;
  ops::amax(cpu_stream(), x, &amax);
  ops::compute_current_scale(cpu_stream(), &amax, format, &cast.scale, &cast.scale_inv);
  Encoded out = with_cast_scales(cast.codes, format, {}, &cast.scale);
  out.tensor_scale = &cast.scale_inv;
  ops::quantize(cpu_stream(), x, {out}, nullptr, nullptr);
  return cast;
}

}  // namespace fp8train::test
