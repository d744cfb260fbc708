// Codes, scales and windows as TransformerEngine's own references compute them:
// tests/golden/ops/te_references.txt, made by make_te_references.py. Exact, but for the deviations
// that are named here.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/quantizer_fixtures.h"

namespace fp8train::test {
namespace {

constexpr const char* kReferences = "te_references.txt";

/// Codes, and the factors or E8M0 bytes that read them.
struct CastResult {
  std::vector<uint8_t> codes, scales;

  std::string prints() const {
    return fingerprint(codes.data(), codes.size()) + " " +
           fingerprint(scales.data(), scales.size());
  }
};

std::vector<uint8_t> bytes_of(const void* data, size_t size) {
  std::vector<uint8_t> bytes(size);
  std::memcpy(bytes.data(), data, size);
  return bytes;
}

CastResult cast_whole(Array& x, const TensorFormat& format) {
  CurrentCast cast = cast_with_current_scale(x, format);
  return {bytes_of(cast.codes.as<char>(), cast.codes.bytes().size()), bytes_of(&cast.scale_inv, 4)};
}

CastResult cast_blocks(Array& x, const TensorFormat& format, bool transposed) {
  const int64_t rows = transposed ? ConstView(x).shape[1] : ConstView(x).shape[0];
  const int64_t columns = x.count() / rows;
  const int64_t count = ops::scale_grid(format.block, rows, columns, ScaleLayout::row_major).count;
  Array codes(format.dtype, {rows, columns});
  Array scale_inv(format.scale_type == ScaleType::e8m0 ? DType::e8m0 : DType::f32, {count});
  const Encoded view = {codes, format, scale_inv};
  ops::quantize(cpu_stream(), x, {transposed ? Encoded{} : view, transposed ? view : Encoded{}},
                nullptr, nullptr);
  return {bytes_of(codes.as<char>(), codes.bytes().size()),
          bytes_of(scale_inv.bytes().data(), scale_inv.bytes().size())};
}

/// Named deviation: a block with an infinity or a NaN. The references give it a scale of 0 or NaN,
/// here it is 1 and the run skips the step. Its codes and its scale are taken as zero.
void mask_blocks(Array& x, const TensorFormat& format, bool transposed, CastResult& result) {
  const bool square = format.block == per::block_128x128;
  const int64_t width = format.block == per::block_1x32 ? 32 : 128;
  const int64_t height = square ? 128 : 1;
  const int64_t rows = transposed ? ConstView(x).shape[1] : ConstView(x).shape[0];
  const int64_t columns = x.count() / rows;
  const int64_t across = (columns + width - 1) / width;
  const size_t scale_bytes = format.scale_type == ScaleType::e8m0 ? 1 : 4;
  const auto finite = [&](int64_t row, int64_t column) {
    const int64_t at = transposed ? column * rows + row : row * columns + column;
    return (x.as<uint16_t>()[at] & 0x7F80U) != 0x7F80U;
  };
  for (int64_t block = 0; block < (rows + height - 1) / height * across; ++block) {
    const int64_t top = block / across * height;
    const int64_t left = block % across * width;
    bool good = true;
    const auto each = [&](const auto& apply) {
      for (int64_t r = top; r < std::min(top + height, rows); ++r) {
        for (int64_t c = left; c < std::min(left + width, columns); ++c) {
          apply(r, c);
        }
      }
    };
    each([&](int64_t r, int64_t c) { good = good && finite(r, c); });
    if (!good) {
      each([&](int64_t r, int64_t c) { result.codes[static_cast<size_t>(r * columns + c)] = 0; });
      std::memset(result.scales.data() + static_cast<size_t>(block) * scale_bytes, 0, scale_bytes);
    }
  }
}

TEST_CASE("casts have the codes and scales of TransformerEngine's references", "[ops][blocks]") {
  std::map<std::string, Array> inputs;
  std::map<std::string, size_t> compared;
  for (std::istringstream& line : lines_that_begin_with("cast", kReferences)) {
    std::string source, input, dtype, granularity, scale, codes, scales;
    line >> source >> input >> dtype >> granularity >> scale;
    if (!inputs.contains(input)) {
      inputs.emplace(input, input_of(input));
    }
    Array& x = inputs.at(input);
    const TensorFormat format = format_of(dtype, granularity, scale);
    INFO(source << " " << input << " " << describe(format));
    bool transposed = false;
    while (line >> codes >> scales) {
      CastResult got =
          format.block == per::tensor ? cast_whole(x, format) : cast_blocks(x, format, transposed);
      if (format.block != per::tensor) {
        mask_blocks(x, format, transposed, got);
      }
      CHECK(got.prints() == codes + " " + scales);
      transposed = true;
      compared[source] += 1;
    }
  }
  CHECK(compared["blockwise"] == 80);
  CHECK(compared["current"] == 16);
  CHECK(compared["mxfp8"] >= 14);
}

struct Slot {
  float amax = 0.0F, scale = 1.0F, scale_inv = 1.0F;
  int32_t cursor = 0;
  std::vector<float> history;

  /// Rows 1.. of the shifted history, oldest first: the ring without the oldest of the window.
  std::string rows() const {
    std::vector<float> values;
    const size_t length = history.size();
    for (size_t i = 0; i + 1 < length; ++i) {
      values.push_back(history[(static_cast<size_t>(cursor) + 2 + i) % length]);
    }
    return fingerprint(values.data(), values.size() * sizeof(float));
  }
};

// Named deviation: an amax that is 0 or not finite does not enter the window. The reference moves
// its history in every update; TransformerEngine's kernel (common/recipe/delayed_scaling.cu) leaves
// it alone for 0. Both end the effect of an infinity when it leaves the window; here such a step is
// skipped.
TEST_CASE("delayed scaling has the scales and windows of _amax_and_scale_update", "[ops]") {
  std::ifstream file(FP8TRAIN_GOLDEN_DIR "/ops/te_references.txt");
  REQUIRE(file.good());
  Slot slot;
  DelayedScaling rule;
  float largest = 0.0F;
  int64_t since_special = 0;
  size_t updates = 0, wrong = 0, runs = 0, specials = 0, compared = 0, deviating = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word, algorithm, format;
    line >> word;
    if (word == "delayed") {
      int64_t length = 0;
      line >> length >> algorithm >> rule.margin >> format;
      rule.algorithm = algorithm == "max" ? AmaxAlgorithm::max : AmaxAlgorithm::most_recent;
      largest = format == "e4m3" ? kMaxE4M3 : kMaxE5M2;
      slot = {};
      slot.history.resize(static_cast<size_t>(length));
      since_special = length;
      runs += 1;
    } else if (word == "update") {
      std::string amax, every, skipping, history;
      line >> amax >> every >> skipping >> history;
      slot.amax = float_of_hex(amax);
      const bool special = !(slot.amax > 0.0F) || !std::isfinite(slot.amax);
      ops::update_delayed_scaling(
          cpu_stream(),
          {1, static_cast<int64_t>(slot.history.size()), &slot.amax, slot.history.data(),
           &slot.cursor, &slot.scale, &slot.scale_inv, &largest},
          rule);
      const uint32_t ours = bits_of(slot.scale);
      wrong += ours == bits_of(float_of_hex(skipping)) && slot.rows() == history ? 0 : 1;
      since_special = special ? 0 : since_special + 1;
      // A window without such an amax: also the reference that is called in every update.
      const bool clean = since_special >= static_cast<int64_t>(slot.history.size());
      const bool same = ours == bits_of(float_of_hex(every));
      compared += clean ? 1 : 0;
      wrong += clean && !same ? 1 : 0;
      deviating += !clean && !same ? 1 : 0;
      specials += special ? 1 : 0;
      updates += 1;
    }
  }
  CHECK(wrong == 0);
  CHECK(runs == 6);
  CHECK(updates == 960);
  CHECK(specials > 50);
  CHECK(compared > 250);
  CHECK(deviating > 0);
}

}  // namespace
}  // namespace fp8train::test
