// Formats of stored tensors: which there are, what their parts are, and how a pool lays them out.
// All formats that can be written are visited.

#include "tensor/encoded.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "numeric/with_type.h"
#include "tensor/stored_pool.h"

namespace fp8train {
namespace {

/// Every combination of the words of a format whose meaning does not depend on a number.
template <typename Visit>
void for_each_format(const Visit& visit) {
  for (const DType dtype : RoleTypes::kTypes) {
    for (const ScaleBlock block : per::kInUse) {
      for (const auto& policy : kScalePolicies) {
        for (const ScaleTypeFacts& scale : kScaleTypeFacts) {
          for (const auto& rounding : kRoundings) {
            for (int words = 0; words < 8; ++words) {
              TensorFormat format = plain(dtype);
              format.rounding = rounding.first;
              if (policy.first != ScalePolicy::none) {
                format.block = block;
                format.policy = policy.first;
                format.scale_type = scale.type;
                format.expanded = (words & 1) != 0;
                format.hadamard = (words & 2) != 0;
                format.row_scaled = (words & 4) != 0;
              }
              visit(format);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("each format that can be written is read as it was") {
  size_t read = 0;
  for_each_format([&](const TensorFormat& format) {
    const std::string text = describe(format);
    const bool has_no_meaning =
        (format.expanded && !format.block.is_group()) ||
        ((format.hadamard || format.row_scaled) && !facts_of(format.scale_type).two_level);
    if (has_no_meaning) {
      CHECK_THROWS_AS(parse_format(text), ConfigError);
      return;
    }
    const TensorFormat again = parse_format(text);
    read += 1;
    if (!(again == format)) FAIL(text << " is read as " << describe(again));
  });
  CHECK(read > 10'000);
  for (const char* text : {"e4m3 tensor delayed(3, most_recent, margin 1, current at first, per "
                           "step, each rank, every 7) pow2 stochastic",
                           "e5m2 1x128 current pow2 epsilon 1e-12 stochastic",
                           "int8 row static(0.25)", "bf16 remainder"}) {
    CHECK(describe(parse_format(text)) == text);
  }
  CHECK(parse_format("bf16 remainder") == master_halves());
}

/// The rule of the head of encoded.h, from its sentences.
bool may_be_stored(const TensorFormat& format) {
  const bool stochastic = format.rounding == Rounding::stochastic;
  const bool plain_words = !format.hadamard && !format.row_scaled;
  if (!format.is_scaled()) {
    return format.dtype == DType::bf16 || (format.dtype == DType::f32 && !stochastic);
  }
  if (format.dtype == DType::e2m1) {
    return plain_words && format.policy == ScalePolicy::current && !format.expanded &&
           format.scale_type == ScaleType::e4m3 && format.block == per::group(128);
  }
  const bool by_scale = format.scale_type == ScaleType::f32 || format.scale_type == ScaleType::pow2;
  const bool block = format.block == per::tensor || format.block == per::group(128);
  const bool element = format.dtype == DType::f16 || format.dtype == DType::bf16 ||
                       format.dtype == DType::e4m3 || format.dtype == DType::e5m2;
  const bool expanded = format.dtype == DType::e4m3 && format.block == per::group(128) &&
                        format.scale_type == ScaleType::f32;
  return plain_words && format.policy == ScalePolicy::current && by_scale && block && element &&
         (!format.expanded || expanded);
}

std::vector<TensorFormat> stored_formats() {
  std::vector<TensorFormat> formats = {master_halves()};
  for_each_format([&](const TensorFormat& format) {
    if (is_stored_format(format) && std::ranges::find(formats, format) == formats.end()) {
      formats.push_back(format);
    }
  });
  return formats;
}

TEST_CASE("the formats of stored tensors are those of the head's list") {
  for_each_format([](const TensorFormat& format) {
    if (is_stored_format(format) != may_be_stored(format)) {
      FAIL(describe(format));
    }
  });
  CHECK(is_stored_format(master_halves()));
  CHECK(stored_formats().size() == 1 + 3 + 4 * 2 * 2 * 2 + 2 + 2);
}

TEST_CASE("parts of a stored tensor have its codes and its scales once") {
  std::mt19937 random(3);
  const auto below = [&](int64_t end) {
    return std::uniform_int_distribution<int64_t>(0, end - 1)(random);
  };
  for (const TensorFormat& format : stored_formats()) {
    CAPTURE(describe(format));
    const int64_t count = 128 * 17 + below(128);
    std::vector<uint8_t> codes(static_cast<size_t>(count) * 4);
    std::vector<float> scales(static_cast<size_t>(stored_scales(format, count)));
    const Encoded all({codes.data(), format.dtype, {count}}, format,
                      {scales.data(), DType::f32, {std::ssize(scales)}});
    int64_t first = 0, scale = 0;
    while (first < count) {
      const int64_t length = std::min(count - first, 128 * (1 + below(5)));
      const Encoded part = part_of(all, first, length);
      REQUIRE(part.count() == length);
      CHECK(part.codes.as<uint8_t>() == codes.data() + storage_bytes(format.dtype, {first}));
      CHECK(part.format == format);
      if (codec_of(format) == Codec::tensor) {
        CHECK(part.scales.as<float>() == scales.data());
        CHECK(part.scales.count() == 2);
      } else if (format.block.is_group()) {
        CHECK(part.scales.as<float>() == scales.data() + scale);
        scale += part.scales.count();
      }
      first += length;
    }
    CHECK((codec_of(format) == Codec::tensor || scale == std::ssize(scales)));
    CHECK_THROWS_AS(part_of(all, 1, 2), InternalError);
    CHECK_THROWS_AS(part_of(all, 128, count), InternalError);
  }
}

TEST_CASE("tensors of a pool do not overlap, begin aligned and are what the ledger counts") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  const std::vector<TensorFormat> formats = stored_formats();
  std::mt19937 random(5);
  StoredPool pool;
  std::vector<std::pair<TensorFormat, Shape>> added;
  for (int i = 0; i < 200; ++i) {
    const TensorFormat& format = formats[random() % formats.size()];
    const Shape shape = {static_cast<int64_t>(random() % 9), static_cast<int64_t>(random() % 70)};
    const int queue = static_cast<int>(random() % 2);
    const size_t position = pool.add(format, shape, MemoryCategory::gradients, queue);
    CHECK(position == pool.size() - 1);
    added.emplace_back(format, shape);
    if (i % 50 == 7) {
      pool.skip();
      added.emplace_back(TensorFormat(), Shape());
    }
  }
  CHECK_THROWS_AS(pool.add(parse_format("e4m3 1x128"), {1}, MemoryCategory::gradients),
                  InternalError);
  pool.allocate(*device);
  std::vector<std::pair<const uint8_t*, const uint8_t*>> ranges;
  for (size_t i = 0; i < added.size(); ++i) {
    const Encoded tensor = pool.at(i);
    const auto& [format, shape] = added[i];
    if (shape.rank() == 0 || shape.count() == 0) continue;
    CHECK((format.dtype == DType::e2m1 || tensor.codes.shape == shape));
    CHECK(tensor.codes.count() == shape.count());
    CHECK(tensor.format == format);
    CHECK((tensor.scales.empty() ? 0 : tensor.scales.count()) ==
          stored_scales(format, shape.count()));
    const auto* begin = tensor.codes.as<const uint8_t>();
    const View buffer = pool.whole(pool.buffer_of(i)).codes;
    const auto run = static_cast<std::ptrdiff_t>(storage_bytes(format.dtype, {kRangeAlignment}));
    CHECK((begin - buffer.as<const uint8_t>()) % run == 0);
    ranges.emplace_back(begin, begin + tensor.codes.bytes());
    const auto* scales = tensor.scales.as<const uint8_t>();
    if (!tensor.scales.empty()) ranges.emplace_back(scales, scales + tensor.scales.bytes());
    if (format.dtype == DType::f32) {
      CHECK(to_host_f32(*device, tensor.codes) ==
            std::vector<float>(static_cast<size_t>(shape.count())));
    }
  }
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i) {
    REQUIRE(ranges[i - 1].second <= ranges[i].first);
  }
  size_t bytes = 0;
  for (size_t buffer = 0; buffer < pool.buffers(); ++buffer) {
    const Encoded all = pool.whole(buffer);
    bytes += all.codes.bytes() + (all.scales.empty() ? 0 : all.scales.bytes());
    int64_t tensors = 0;
    for (const size_t position : pool.tensors_of(buffer)) {
      CHECK(pool.buffer_of(position) == buffer);
      CHECK(added[position].first == all.format);
      tensors += 1;
    }
    const auto begins = pool.begins_of({buffer, 0, static_cast<size_t>(tensors)});
    CHECK(std::ranges::is_sorted(begins));
  }
  const size_t counted = device->ledger().current(MemoryCategory::gradients) +
                         device->ledger().current(MemoryCategory::master_weights);
  CHECK(counted >= bytes);
  CHECK(counted <= bytes + 512 * 2 * pool.buffers());
}

}  // namespace
}  // namespace fp8train
