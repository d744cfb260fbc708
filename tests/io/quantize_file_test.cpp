// Casting files: what is cast and what is copied, names, shapes and offsets, figures. The bits are
// compared with another program's in tests/run/quantize_test.cpp.

#include "io/export/quantize_file.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "device/device.h"
#include "io/safetensors/safetensors.h"
#include "numeric/convert.h"
#include "support/files.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

TensorFormat format_of(DType dtype, ScaleBlock granularity, ScaleType scale = ScaleType::f32) {
  TensorFormat format;
  format.dtype = dtype;
  format.block = granularity;
  format.scale_type = scale;
  format.policy = ScalePolicy::current;
  return format;
}

FileQuantization with(const TensorFormat& format) {
  FileQuantization how;
  how.format = format;
  return how;
}

std::vector<float> ramp(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(static_cast<float>(i % 23) - 11.3F, static_cast<int>(i % 7) - 3);
  }
  return values;
}

/// A file of matrices, vectors and what is not floating.
struct Sample {
  Sample() {
    const int64_t numbers[4] = {1, 2, 3, 4};
    write_safetensors({{"layers.0.q.weight", DType::f32, {130, 140}, weights.data()},
                       {"layers.1.k.weight", DType::f32, {3, 2, 70}, weights.data()},
                       {"layers.1.norm.weight", DType::f32, {9}, weights.data()},
                       {"empty", DType::f32, {0, 4}, nullptr},
                       {"scalar", DType::f32, {}, weights.data()},
                       {"numbers", DType::i64, {2, 2}, numbers}},
                      {{"note", "copied"}}, in);
  }

  FileQuantizationReport run(const FileQuantization& how) const {
    return quantize_file(in, out, how);
  }

  test::TempDir folder;
  std::vector<float> weights = ramp(130 * 140);
  std::filesystem::path in = folder / "in.safetensors", out = folder / "out.safetensors";
};

std::string stored_names(const FileQuantizationReport& report) {
  std::string names;
  for (const CopiedTensor& tensor : report.copied) {
    names += tensor.name + ": " + tensor.reason + "\n";
  }
  return names;
}

TEST_CASE("codes and scales have the names, types and shapes of the field", "[io]") {
  using namespace per;
  struct Expected {
    TensorFormat format;
    std::string code, suffix, scale;
    std::vector<int64_t> shape, shape_of_three;
    std::string packed = {};
    size_t tensors = 8;
  };
  const Expected cases[] = {
      {format_of(DType::e4m3, tensor), "F8_E4M3", "_scale", "F32", {1}, {1}},
      {format_of(DType::i8, row), "I8", "_scale", "F32", {130, 1}, {6, 1}},
      {format_of(DType::e5m2, block_1x128), "F8_E5M2", "_scale_inv", "F32", {130, 2}, {6, 1}},
      {format_of(DType::e4m3, block_128x128), "F8_E4M3", "_scale_inv", "F32", {2, 2}, {1, 1}},
      {format_of(DType::e4m3, block_1x32, ScaleType::e8m0),
       "F8_E4M3",
       "_scale",
       "U8",
       {130, 5},
       {6, 3}},
      {format_of(DType::e2m1, block_32x32, ScaleType::e8m0),
       "U8",
       "_scale",
       "U8",
       {130, 5},
       {6, 3},
       "_packed"},
      {format_of(DType::e2m1, block_1x16, ScaleType::e4m3),
       "U8",
       "_scale",
       "F8_E4M3",
       {130, 9},
       {6, 5},
       "_packed",
       10}};
  for (const Expected& expected : cases) {
    const Sample sample;
    sample.run(with(expected.format));
    const SafetensorsFile file(sample.out);
    INFO(describe(expected.format));
    for (const auto& [name, shape] : {std::pair{"layers.0.q.weight", expected.shape},
                                      {"layers.1.k.weight", expected.shape_of_three}}) {
      REQUIRE(file.find(name + expected.packed) != nullptr);
      CHECK(file.find(name + expected.packed)->type.name == expected.code);
      const SafetensorsEntry* scale = file.find(name + expected.suffix);
      REQUIRE(scale != nullptr);
      CHECK(scale->type.name == expected.scale);
      CHECK(scale->shape == shape);
    }
    CHECK(file.find("layers.1.k.weight" + expected.packed)->shape ==
          std::vector<int64_t>{3, 2, expected.packed.empty() ? 70 : 35});
    CHECK(file.header().entries.size() == expected.tensors);
    CHECK(file.header().metadata.at("note") == "copied");
    CHECK_THAT(file.header().metadata.at("quantization"),
               Contains(std::string(name_of(expected.format.block))));
  }
}

TEST_CASE("tensors that are not cast are copied and listed with the reason", "[io]") {
  const Sample sample;
  const FileQuantizationReport report = sample.run(with(format_of(DType::e4m3, per::row)));
  CHECK(report.tensors.size() == 2);
  CHECK_THAT(stored_names(report),
             Contains("layers.1.norm.weight: one dimension\n") && Contains("numbers: I64\n") &&
                 Contains("scalar: a scalar\n") && Contains("empty: no elements\n"));
  const SafetensorsFile in(sample.in);
  const SafetensorsFile out(sample.out);
  for (const char* name : {"layers.1.norm.weight", "scalar", "numbers"}) {
    REQUIRE(out.find(name) != nullptr);
    std::vector<char> before(in.find(name)->bytes());
    std::vector<char> after(out.find(name)->bytes());
    in.read(*in.find(name), before.data());
    out.read(*out.find(name), after.data());
    CHECK(before == after);
  }
}

TEST_CASE("patterns and vectors choose what is cast", "[io]") {
  const Sample sample;
  FileQuantization how = with(format_of(DType::e4m3, per::row));
  const auto cast_names = [&] {
    std::string names;
    for (const QuantizedEntry& tensor : sample.run(how).tensors) {
      names += tensor.name + " ";
    }
    return names;
  };
  how.include = {"layers.1.*"};
  CHECK(cast_names() == "layers.1.k.weight ");
  how.vectors = true;
  CHECK(cast_names() == "layers.1.k.weight layers.1.norm.weight ");
  how.include = {};
  how.exclude = {"*.q.*", "*.norm.*"};
  CHECK(cast_names() == "layers.1.k.weight ");
  how.exclude = {"*"};
  const std::string message = message_of<ConfigError>([&] { sample.run(how); });
  CHECK_THAT(message, Contains("in.safetensors") && Contains("none of its 6 tensors"));
}

TEST_CASE("a dequantized file holds what the codes stand for", "[io]") {
  using namespace per;
  for (const TensorFormat& format : {format_of(DType::e4m3, tensor), format_of(DType::i8, row),
                                     format_of(DType::e5m2, block_1x32, ScaleType::e8m0)}) {
    const Sample sample;
    FileQuantization how = with(format);
    sample.run(how);
    const SafetensorsFile encoded(sample.out);
    const SafetensorsEntry& entry = *encoded.find("layers.0.q.weight");
    std::vector<uint8_t> codes(entry.bytes());
    encoded.read(entry, codes.data());
    const SafetensorsEntry& scale = *encoded.find("layers.0.q.weight_scale");
    std::vector<uint8_t> scales(scale.bytes());
    encoded.read(scale, scales.data());
    const size_t width = format.block == block_1x32 ? 32 : 140;
    const size_t across = (140 + width - 1) / width;
    how.dequantize = true;
    sample.run(how);
    const SafetensorsFile plain(sample.out);
    CHECK(plain.header().entries.size() == 6);
    const std::vector<float> values = plain.read_f32(*plain.find("layers.0.q.weight"));
    size_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t block = format.block == tensor ? 0 : i / 140 * across + i % 140 / width;
      float factor = 0.0F;
      if (format.scale_type == ScaleType::e8m0) {
        factor = std::ldexp(1.0F, scales[block] - 127);
      } else {
        std::memcpy(&factor, scales.data() + block * sizeof(float), sizeof(float));
      }
      const float code = format.dtype == DType::i8     ? decode(static_cast<int8_t>(codes[i]))
                         : format.dtype == DType::e4m3 ? decode(e4m3{codes[i]})
                                                       : decode(e5m2{codes[i]});
      wrong += values[i] == code * factor ? 0 : 1;
    }
    INFO(describe(format));
    CHECK(wrong == 0);
  }
}

TEST_CASE("quality counts what is not finite and leaves it out of the noise", "[io]") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  const auto run = [&](std::vector<float> values, const TensorFormat& format) {
    const auto count = static_cast<int64_t>(values.size());
    return quantize_matrix(device->stream(), {values.data(), DType::f32, {1, count}}, format, {})
        .quality;
  };
  const TensorFormat format = format_of(DType::e4m3, per::tensor);
  const CastQuality plain = run({448.0F, 1.0F, 1.03F, 0.0F}, format);
  CHECK(plain.amax == 448.0F);
  CHECK(plain.signal ==
        448.0 * 448.0 + 1.0 + static_cast<double>(1.03F) * static_cast<double>(1.03F));
  const double rounded_off = static_cast<double>(1.03F) - 1.0;
  CHECK(plain.noise == rounded_off * rounded_off);
  CHECK(plain.snr_db() == Approx(10 * std::log10(plain.signal / plain.noise)));
  CHECK(std::isinf(run({448.0F, 1.0F}, format).snr_db()));
  CHECK(std::isnan(run({0.0F}, format).snr_db()));
  // A scale of 1: 500 saturates, 1e-9 vanishes.
  const CastQuality odd = run({INFINITY, NAN, 500.0F, 1e-9F, 2.0F}, format);
  CHECK(std::isnan(odd.amax));
  CHECK(odd.not_a_number == 1);
  CHECK(odd.infinite == 1);
  CHECK(odd.statistics.saturated == 2);
  CHECK(odd.statistics.underflow == 1);
  CHECK(odd.noise == Approx(52.0 * 52.0));
  // An MX block that holds NaN is NaN throughout: all of it is lost.
  const CastQuality lost =
      run({NAN, 3.0F, 4.0F}, format_of(DType::e4m3, per::block_1x32, ScaleType::e8m0));
  CHECK(lost.noise == 25.0);
  CastQuality sum = plain;
  sum += odd;
  CHECK(std::isnan(sum.amax));
  CHECK(sum.statistics.count == 9);
  CHECK(sum.noise == plain.noise + odd.noise);
}

TEST_CASE("stochastic codes are neighbours that depend on seed and tensor", "[io]") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::vector<float> values = ramp(520);
  TensorFormat format = format_of(DType::e4m3, per::block_1x128);
  format.rounding = Rounding::stochastic;
  const auto codes = [&](const StochasticKey& key) {
    return quantize_matrix(device->stream(), {values.data(), DType::f32, {2, 260}}, format, key)
        .codes;
  };
  const std::vector<uint8_t> first = codes({1, 0});
  CHECK(first == codes({1, 0}));
  CHECK(first != codes({2, 0}));
  CHECK(first != codes({1, 1}));
}

TEST_CASE("what has no meaning is refused, and names that clash", "[io]") {
  using namespace per;
  CHECK_THROWS_AS(check_quantization(format_of(DType::e4m3, row, ScaleType::e8m0)), ConfigError);
  CHECK_THROWS_AS(check_quantization(format_of(DType::e4m3, block_1x32)), ConfigError);
  CHECK_THROWS_AS(check_quantization(format_of(DType::i8, block_1x32, ScaleType::e8m0)),
                  ConfigError);
  CHECK_THAT(message_of<ConfigError>([] { check_quantization(format_of(DType::e2m1, row)); }),
             Contains("codes in e2m1 have scales for one of: 1x32, 32x32, 1x16, 16x16"));
  CHECK(quantization_blocks() == std::vector{tensor, row, block_1x128, block_128x128, block_1x32,
                                             block_32x32, block_1x16, block_16x16});
  const test::TempDir folder;
  const float values[4] = {1, 2, 3, 4};
  write_safetensors({{"w", DType::f32, {2, 2}, values}, {"w_scale", DType::f32, {1}, values}}, {},
                    folder / "in");
  CHECK_THAT(message_of<CheckpointError>([&] {
               quantize_file(folder / "in", folder / "out", with(format_of(DType::e4m3, tensor)));
             }),
             Contains("'w_scale' is used twice"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("a safetensors file is written in any order", "[io]") {
  const test::TempDir folder;
  const float values[3] = {1, 2, 3};
  const uint8_t bytes[2] = {7, 8};
  const auto path = folder / "out.safetensors";
  {
    SafetensorsWriter writer(
        path, {safetensors_entry("b", DType::u8, {2}), safetensors_entry("a", DType::f32, {3})},
        {});
    writer.write("b", bytes);
    CHECK_THROWS_AS(writer.write("b", bytes), InternalError);
    CHECK_THROWS_AS(writer.write("c", bytes), InternalError);
    CHECK_THROWS_AS(writer.commit(), InternalError);
    writer.write("a", values);
    CHECK_FALSE(std::filesystem::exists(path));
    writer.commit();
  }
  std::string streamed;
  write_safetensors({{"b", DType::u8, {2}, bytes}, {"a", DType::f32, {3}, values}}, {},
                    [&](const void* data, size_t count) {
                      streamed.append(static_cast<const char*>(data), count);
                    });
  CHECK(test::read_file(path) == streamed);
}

/// Processor seconds of writing and quantizing a file of so many empty tensors.
double seconds_of_empty_tensors(size_t count) {
  const test::TempDir dir;
  const std::vector<float> weights = ramp(64);
  std::vector<TensorBytes> tensors = {{"weight", DType::f32, {8, 8}, weights.data()}};
  for (size_t i = 0; i < count; ++i) {
    tensors.push_back({"empty." + std::to_string(i), DType::f32, {0, 4}, nullptr});
  }
  const std::clock_t begin = std::clock();
  write_safetensors(tensors, {}, dir / "in");
  const FileQuantizationReport report =
      quantize_file(dir / "in", dir / "out", with(format_of(DType::e4m3, per::tensor)));
  const std::clock_t end = std::clock();
  CHECK(report.copied.size() == count);
  CHECK(SafetensorsFile(dir / "out").header().entries.size() == count + 2);
  return static_cast<double>(end - begin) / CLOCKS_PER_SEC;
}

TEST_CASE("many tensors take time in proportion to their number") {
  constexpr size_t kFew = test::kSanitized ? 1'000 : 10'000;
  constexpr size_t kTimes = 8;
  const double few = std::min(seconds_of_empty_tensors(kFew), seconds_of_empty_tensors(kFew));
  // 64 times as long where each tensor is compared with all others.
  CHECK(seconds_of_empty_tensors(kFew * kTimes) < 3 * kTimes * few);
}

TEST_CASE("values that are not finite are named, cast or copied") {
  const test::TempDir dir;
  std::vector<float> weights = ramp(64);
  weights[5] = std::nanf("");
  weights[7] = INFINITY;
  const std::vector<float> good = ramp(64);
  write_safetensors({{"cast", DType::f32, {8, 8}, weights.data()},
                     {"copied", DType::f32, {64}, weights.data()},
                     {"good", DType::f32, {8, 8}, good.data()},
                     {"good.vector", DType::f32, {64}, good.data()}},
                    {}, dir / "in");
  const FileQuantizationReport report =
      quantize_file(dir / "in", dir / "out", with(format_of(DType::e4m3, per::tensor)));
  const std::vector<std::string> lines = report.not_finite();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "cast: 1 of 64 values are NaN, 1 infinite");
  CHECK(lines[1] == "copied: 2 values are NaN or infinite, and are copied as they are");
}

}  // namespace
}  // namespace fp8train
