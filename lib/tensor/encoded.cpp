#include "tensor/encoded.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "base/math.h"
#include "numeric/codec.h"
#include "tensor/level_formats.h"

namespace fp8train {

bool is_stored_format(const TensorFormat& format) {
  const DType dtype = format.dtype;
  TensorFormat nearest = format;
  nearest.rounding = Rounding::nearest_even;
  if (is_level_format(nearest)) {
    return true;
  }
  if (!format.is_scaled()) {
    const bool exact = dtype == DType::f32 && format.rounding == Rounding::nearest_even;
    return format.remainder ? format == master_halves()
                            : !format.expanded && (exact || dtype == DType::bf16);
  }
  const bool grouped = format.block == kStoredBlock;
  if (format.expanded && (!grouped || dtype != DType::e4m3)) {
    return false;
  }
  if (format.amax_epsilon > 0 || (format.expanded && format.scale_type != ScaleType::f32)) {
    return false;
  }
  const bool fp32_scales =
      format.scale_type == ScaleType::f32 || format.scale_type == ScaleType::pow2;
  return (grouped || format.block == per::tensor) && format.policy == ScalePolicy::current &&
         fp32_scales && !format.hadamard && !format.row_scaled && is_stored_type(dtype) &&
         dtype != DType::f32;
}

TensorFormat saved_groups() {
  TensorFormat format = plain(DType::e4m3);
  format.block = kSavedBlock;
  format.policy = ScalePolicy::current;
  return format;
}

const std::vector<TensorFormat>& level_formats() {
  static const std::vector<TensorFormat> kFormats = [] {
    std::vector<TensorFormat> formats;
    AllGroupScales::for_each([&]<typename Scales>(Scales) {
      static_assert(kRangeAlignment % Scales::kGroup == 0 && Scales::kGroup % Scales::kBlock == 0);
      static_assert((Scales::kBlock & (Scales::kBlock - 1)) == 0);
      static_assert(per::group(Scales::kGroup) != kSavedBlock, "groups of Codec::divided");
      TensorFormat& format = formats.emplace_back(plain(DType::e2m1));
      format.block = per::group(Scales::kGroup);
      format.policy = ScalePolicy::current;
      format.scale_type = ScaleType::e4m3;
    });
    return formats;
  }();
  return kFormats;
}

bool is_level_format(const TensorFormat& format) {
  return std::ranges::find(level_formats(), format) != level_formats().end();
}

std::string level_formats_text() {
  std::string all;
  for (const TensorFormat& format : level_formats()) {
    all += (all.empty() ? "'" : ", '") + describe(format) + "'";
  }
  return all;
}

int64_t level_scale_bytes(const TensorFormat& format) {
  size_t bytes = 0;
  AllGroupScales::with(format.block.columns, [&](auto scales) { bytes = sizeof(scales); });
  return static_cast<int64_t>(bytes);
}

TensorFormat two_level_groups() {
  const ScaleBlock group = per::group(GroupScales::kGroup);
  return *std::ranges::find(level_formats(), group, &TensorFormat::block);
}

int64_t stored_scales(const TensorFormat& format, int64_t count) {
  const Codec codec = codec_of(format);
  if (codec == Codec::plain || codec == Codec::tensor) {
    return codec == Codec::plain ? 0 : 2;
  }
  const int64_t groups = ceil_div(count, format.block.columns);
  switch (codec) {
    case Codec::halves:
      return groups * format.block.columns / 2;
    case Codec::expanded:
      return 3 * groups;
    case Codec::two_level:
      return ceil_div(count, kRangeAlignment) * level_scale_bytes(format) *
             (kRangeAlignment / format.block.columns) / 4;
    default:
      return groups;
  }
}

Encoded part_of(const Encoded& tensor, int64_t first, int64_t count) {
  check(first % kRangeAlignment == 0 && first + count <= tensor.count(),
        "a part begins at a multiple of kRangeAlignment and lies in the tensor");
  const DType dtype = tensor.codes.dtype;
  auto* const codes = tensor.codes.as<std::byte>() + storage_bytes(dtype, {first});
  Encoded part({codes, dtype, {count}}, tensor.format, tensor.scales);
  check(codec_of(tensor.format) != Codec::divided, "saved inputs have no parts");
  if (tensor.format.block.is_group()) {
    part.scales = {tensor.scales.as<float>() + stored_scales(tensor.format, first),
                   DType::f32,
                   {stored_scales(tensor.format, count)}};
  }
  return part;
}

}  // namespace fp8train
