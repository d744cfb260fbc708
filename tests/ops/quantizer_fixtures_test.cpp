// Codes, scales and the upkeep of scales, bit for bit as torchao and rules written down in NumPy
// give them: tests/golden/ops/quantizers.txt, made by make_quantizers.py. Exact.

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "numeric/bits.h"
#include "numeric/scale.h"
#include "ops/granules.h"
#include "ops/op_test_support.h"
#include "ops/quantize.h"
#include "support/files.h"

namespace fp8train::test {
namespace {

constexpr float kTorchaoEpsilon = 1e-12F;

std::vector<std::istringstream> lines_that_begin_with(const std::string& word) {
  std::ifstream file(FP8TRAIN_GOLDEN_DIR "/ops/quantizers.txt");
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

std::string fingerprint(const void* data, size_t bytes) {
  uint64_t result = 0xCBF29CE484222325U;
  for (size_t i = 0; i < bytes; ++i) {
    result = (result ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3U;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(result));
  return text;
}

/// make_quantizers.py: bf16 bits of one element.
uint16_t adversarial_bits(char kind, uint32_t word, int64_t column) {
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

/// "spread.256.384", "adversarial.8.64.3", "real.128.256"; empty where a file is absent.
Array input_of(const std::string& name) {
  std::istringstream stream(name);
  std::string kind, rows_text, columns_text, kinds;
  std::getline(stream, kind, '.');
  std::getline(stream, rows_text, '.');
  std::getline(stream, columns_text, '.');
  std::getline(stream, kinds, '.');
  const int64_t rows = std::stoll(rows_text);
  const int64_t columns = std::stoll(columns_text);
  if (kind == "real") {
    const std::filesystem::path path = shared_data("stories260K.bin");
    if (path.empty()) {
      return {};
    }
    Array x(DType::f32, {rows, columns});
    std::ifstream file(path, std::ios::binary);
    file.seekg(28);
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

TensorFormat format_of(const std::string& dtype, const std::string& granularity,
                       const std::string& scale) {
  using enum Granularity;
  TensorFormat format;
  format.policy = ScalePolicy::current;
  format.dtype = dtype == "e4m3" ? DType::e4m3 : DType::e5m2;
  const std::map<std::string, Granularity> granularities = {{"tensor", tensor},
                                                            {"row", row},
                                                            {"1x32", block_1x32},
                                                            {"1x128", block_1x128},
                                                            {"128x128", block_128x128}};
  format.granularity = granularities.at(granularity);
  format.scale_type = scale == "fp32"   ? ScaleType::f32
                      : scale == "pow2" ? ScaleType::pow2
                                        : ScaleType::e8m0;
  return format;
}

/// Fingerprints of codes and scales.
std::string cast_tensor(Array& x, const TensorFormat& format) {
  Array codes(format.dtype, {x.count()});
  float amax = 0.0F;
  float scale = 0.0F;
  float scale_inv = 0.0F;
  ops::amax(cpu_stream(), x, &amax);
  ops::compute_current_scale(cpu_stream(), &amax, format, &scale, &scale_inv);
  ops::quantize(cpu_stream(), x, {codes, {}, &scale, &scale_inv, format}, nullptr, nullptr);
  return fingerprint(codes.as<char>(), codes.bytes().size()) + " " + fingerprint(&scale, 4);
}

std::string cast_granules(Array& x, const TensorFormat& format, bool transposed) {
  const int64_t rows = transposed ? ConstView(x).shape[1] : ConstView(x).shape[0];
  const int64_t columns = x.count() / rows;
  const int64_t count =
      ops::granule_grid(format.granularity, rows, columns, ScaleLayout::row_major).count;
  const bool exponents = format.scale_type == ScaleType::e8m0;
  Array codes(format.dtype, {rows, columns});
  Array scale_inv(exponents ? DType::e8m0 : DType::f32, {count});
  Array scale(DType::f32, {count});
  const GranuleView view = {codes, scale_inv, scale.as<float>()};
  ops::quantize_granules(cpu_stream(), x,
                         {transposed ? GranuleView{} : view, transposed ? view : GranuleView{},
                          format, ScaleLayout::row_major},
                         nullptr, nullptr);
  const Array& scales = exponents ? scale_inv : scale;
  return fingerprint(codes.as<char>(), codes.bytes().size()) + " " +
         fingerprint(scales.bytes().data(), scales.bytes().size());
}

TEST_CASE("casts have the codes and scales of torchao and of the written rules",
          "[ops][granules]") {
  std::map<std::string, Array> inputs;
  size_t compared = 0;
  for (std::istringstream& line : lines_that_begin_with("cast")) {
    std::string source, input, dtype, granularity, scale, codes, scales;
    line >> source >> input >> dtype >> granularity >> scale;
    if (!inputs.contains(input)) {
      inputs.emplace(input, input_of(input));
    }
    Array& x = inputs.at(input);
    if (x.count() <= 1) {
      continue;
    }
    TensorFormat format = format_of(dtype, granularity, scale);
    format.amax_epsilon = source == "torchao" && scale != "e8m0" ? kTorchaoEpsilon : 0.0F;
    INFO(source << " " << input << " " << describe(format));
    bool transposed = false;
    while (line >> codes >> scales) {
      const std::string got = format.granularity == Granularity::tensor
                                  ? cast_tensor(x, format)
                                  : cast_granules(x, format, transposed);
      CHECK(got == codes + " " + scales);
      transposed = true;
      compared += 1;
    }
  }
  CHECK(compared >= 300);
}

float float_of_hex(const std::string& text) {
  return float_of(static_cast<uint32_t>(std::stoul(text, nullptr, 16)));
}

// torchao takes exp2(floor(log2(scale))) in fp32, which is the next power of two for a scale a few
// units in the last place below it: codes then reach beyond the format's maximum.
TEST_CASE("powers of two are torchao's, but never above the scale itself", "[ops]") {
  size_t equal = 0;
  size_t corners = 0;
  for (std::istringstream& line : lines_that_begin_with("corner")) {
    std::string amax_text, scale_text;
    line >> amax_text >> scale_text;
    const float amax = float_of_hex(amax_text);
    const float theirs = float_of_hex(scale_text);
    const float ours = current_scale(amax, kMaxE4M3, kTorchaoEpsilon, true, kMaxF32);
    CHECK(static_cast<double>(ours) * static_cast<double>(amax) <= 448.0);
    CHECK(static_cast<double>(2 * ours) * static_cast<double>(amax) > 448.0);
    equal += theirs == ours ? 1 : 0;
    corners += theirs == 2 * ours && theirs > kMaxE4M3 / amax ? 1 : 0;
  }
  CHECK(equal + corners == 72);
  CHECK(corners > 0);
}

/// The values of a line of hexadecimal numbers.
std::vector<float> values_of(std::istringstream& line) {
  std::vector<float> values;
  for (std::string text; line >> text;) {
    values.push_back(float_of_hex(text));
  }
  return values;
}

TEST_CASE("delayed scaling moves through the scales and the history that are written down",
          "[ops]") {
  std::vector<std::istringstream> runs = lines_that_begin_with("delayed");
  std::vector<std::istringstream> amaxes = lines_that_begin_with("amax");
  std::vector<std::istringstream> scales = lines_that_begin_with("scale");
  std::vector<std::istringstream> histories = lines_that_begin_with("history");
  REQUIRE(runs.size() == 16);
  for (size_t run = 0; run < runs.size(); ++run) {
    int64_t length = 0;
    std::string algorithm, dtype;
    DelayedScaling rule;
    runs[run] >> length >> algorithm >> rule.margin >> dtype;
    rule.algorithm = algorithm == "max" ? AmaxAlgorithm::max : AmaxAlgorithm::most_recent;
    INFO(length << " " << algorithm << " " << dtype);
    std::vector<float> history(static_cast<size_t>(length));
    float amax = 0.0F;
    float scale = 1.0F;
    float scale_inv = 1.0F;
    int32_t cursor = 0;
    const float largest = dtype == "e4m3" ? kMaxE4M3 : kMaxE5M2;
    const std::vector<float> steps = values_of(amaxes[run]);
    const std::vector<float> expected = values_of(scales[run]);
    REQUIRE(steps.size() == 40);
    size_t wrong = 0;
    for (size_t step = 0; step < steps.size(); ++step) {
      amax = steps[step];
      ops::update_delayed_scaling(
          cpu_stream(), {1, length, &amax, history.data(), &cursor, &scale, &scale_inv, &largest},
          rule);
      wrong += bits_of(scale) == bits_of(expected[step]) && amax == 0.0F ? 0 : 1;
    }
    CHECK(wrong == 0);
    // The ring holds one value more than rows 1.. of the shifted history: the oldest of the window.
    const std::vector<float> rows = values_of(histories[run]);
    REQUIRE(rows.size() == static_cast<size_t>(length - 1));
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto at = static_cast<size_t>((cursor + 2 + static_cast<int64_t>(i)) % length);
      CHECK(bits_of(history[at]) == bits_of(rows[i]));
    }
  }
}

}  // namespace
}  // namespace fp8train::test
