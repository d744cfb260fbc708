// Codes, scales and the upkeep of scales, bit for bit as torchao and rules written down in NumPy
// give them: tests/golden/ops/quantizers.txt, made by make_quantizers.py. Exact.

#include <cstring>

#include "numeric/scale.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/quantizer_fixtures.h"

namespace fp8train::test {
namespace {

constexpr float kTorchaoEpsilon = 1e-12F;

/// Fingerprints of codes and scales.
std::string cast_tensor(Array& x, const TensorFormat& format) {
  CurrentCast cast = cast_with_current_scale(x, format);
  return fingerprint(cast.codes.as<char>(), cast.codes.bytes().size()) + " " +
         fingerprint(&cast.scale, 4);
}

std::string cast_blockwise(Array& x, const TensorFormat& format, bool transposed) {
  const int64_t rows = transposed ? ConstView(x).shape[1] : ConstView(x).shape[0];
  const int64_t columns = x.count() / rows;
  const int64_t count = ops::scale_grid(format.block, rows, columns, ScaleLayout::row_major).count;
  const bool exponents = dtype_of(format.scale_type) == DType::e8m0;
  Array codes(format.dtype, {rows, columns});
  Array scale_inv(exponents ? DType::e8m0 : DType::f32, {count});
  Array scale(DType::f32, {count});
  const Encoded view = with_cast_scales(codes, format, scale_inv, scale.as<float>());
  ops::quantize(cpu_stream(), x, {transposed ? Encoded{} : view, transposed ? view : Encoded{}},
                nullptr, nullptr);
  const Array& scales = exponents ? scale_inv : scale;
  return fingerprint(codes.as<char>(), codes.bytes().size()) + " " +
         fingerprint(scales.bytes().data(), scales.bytes().size());
}

TEST_CASE("casts have the codes and scales of torchao and of the written rules", "[ops][blocks]") {
  std::map<std::string, Array> inputs;
  size_t compared = 0;
  for (std::istringstream& line : lines_that_begin_with("cast")) {
    std::string source, input, dtype, granularity, scale, codes, scales;
    line >> source >> input >> dtype >> granularity >> scale;
    if (!inputs.contains(input)) {
      inputs.emplace(input, input_of(input));
    }
    Array& x = inputs.at(input);
    TensorFormat format = format_of(dtype, granularity, scale);
    format.amax_epsilon = source == "torchao" && granularity != "1x32" ? kTorchaoEpsilon : 0.0F;
    INFO(source << " " << input << " " << describe(format));
    bool transposed = false;
    while (line >> codes >> scales) {
      const std::string got = format.block == per::tensor ? cast_tensor(x, format)
                                                          : cast_blockwise(x, format, transposed);
      CHECK(got == codes + " " + scales);
      transposed = true;
      compared += 1;
    }
  }
  CHECK(compared >= 300);
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
