#include "ops/cast/block_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "numeric/with_type.h"

namespace fp8train::ops {
namespace {

constexpr std::span<const DType> kFp8 = Fp8Types::kTypes;
constexpr std::span<const DType> kBytes = ByteCodes::kTypes;
constexpr DType kE2m1[] = {DType::e2m1};

constexpr ScaleType kFp32Scales[] = {ScaleType::f32, ScaleType::pow2};
constexpr ScaleType kE8m0Scales[] = {ScaleType::e8m0, ScaleType::e8m0_floor, ScaleType::e8m0_even};
constexpr ScaleType kE4m3Scales[] = {ScaleType::e4m3, ScaleType::e4m3_4over6,
                                     ScaleType::e4m3_4over6_mse, ScaleType::e4m3_4over6_448,
                                     ScaleType::e4m3_4over6_448_mse};

constexpr BlockFormat kBlockFormats[] = {{per::tensor, kBytes, kFp8, kFp32Scales},
                                         {per::row, kBytes, kBytes, kFp32Scales},
                                         {per::block_1x128, kBytes, kFp8, kFp32Scales},
                                         {per::block_128x128, kBytes, kFp8, kFp32Scales},
                                         {per::block_1x32, kFp8, kFp8, kE8m0Scales},
                                         {per::block_32x32, kFp8, kFp8, kE8m0Scales},
                                         {per::block_1x32, kE2m1, kE2m1, kE8m0Scales},
                                         {per::block_32x32, kE2m1, kE2m1, kE8m0Scales},
                                         {per::block_1x16, kE2m1, kE2m1, kE4m3Scales, true},
                                         {per::block_16x16, kE2m1, kE2m1, kE4m3Scales}};
static_assert(std::ranges::all_of(per::kInUse, [](const ScaleBlock& block) {
  return block.is_group() ||
         std::ranges::find(kBlockFormats, block, &BlockFormat::block) != std::end(kBlockFormats);
}));
static_assert(CodeTypes::count == ByteCodes::count + std::size(kE2m1), "a type is in no line");

using Column = std::span<const DType> BlockFormat::*;

bool has(std::span<const DType> types, DType type) {
  return std::ranges::find(types, type) != types.end();
}

std::string why_not(const TensorFormat& format, Column column, const char* users,
                    std::span<const ScaleBlock> among = per::kInUse) {
  const auto is_among = [&](ScaleBlock block) {
    return std::ranges::find(among, block) != among.end();
  };
  const auto blocks_that = [&](auto belongs) {
    std::vector<std::string> names;
    for (const BlockFormat& line : kBlockFormats) {
      const std::string name = name_of(line.block);
      if (is_among(line.block) && belongs(line) && std::ranges::find(names, name) == names.end()) {
        names.push_back(name);
      }
    }
    return names;
  };
  const BlockFormat* const line = find_block_format(format.block, format.dtype);
  if (line == nullptr || !is_among(format.block)) {
    const auto all = blocks_that([](const BlockFormat& /*each*/) { return true; });
    return fmt::format("{} have scales for one of: {}", users, fmt::join(all, ", "));
  }
  if (!has(line->*column, format.dtype)) {
    const auto blocks =
        blocks_that([&](const BlockFormat& each) { return has(each.*column, format.dtype); });
    if (blocks.empty()) {
      std::vector<std::string_view> types;
      for (const DType type : CodeTypes::kTypes) {
        types.push_back(name_of(type));
      }
      return fmt::format("{} with scales are in one of: {}", users, fmt::join(types, ", "));
    }
    return fmt::format("{} in {} have scales for one of: {}", users, name_of(format.dtype),
                       fmt::join(blocks, ", "));
  }
  const auto has_scales = [&](const BlockFormat& each) {
    return std::ranges::find(each.scales, format.scale_type) != each.scales.end();
  };
  if (!has_scales(*line)) {
    std::vector<std::string_view> types;
    for (const ScaleType type : line->scales) {
      types.push_back(name_of(type));
    }
    return fmt::format("scales for {} are {}; {} ones are for {}", name_of(format.block),
                       fmt::join(types, " or "), name_of(format.scale_type),
                       fmt::join(blocks_that(has_scales), ", "));
  }
  if ((format.hadamard || format.row_scaled) && !line->by_line) {
    const auto blocks = blocks_that([](const BlockFormat& each) { return each.by_line; });
    return fmt::format("{} goes with {}", format.hadamard ? "hadamard" : "row_scaled",
                       fmt::join(blocks, " or "));
  }
  if (facts_of(format.scale_type).four_over_six && format.rounding == Rounding::stochastic) {
    return "the errors that 4over6 compares are those of rounding to nearest";
  }
  return {};
}

}  // namespace

std::span<const BlockFormat> block_formats() {
  return kBlockFormats;
}

const BlockFormat* find_block_format(ScaleBlock block) {
  const auto* const found = std::ranges::find(kBlockFormats, block, &BlockFormat::block);
  return found == std::end(kBlockFormats) ? nullptr : found;
}

const BlockFormat* find_block_format(ScaleBlock block, DType code) {
  const auto* const found = std::ranges::find_if(kBlockFormats, [&](const BlockFormat& line) {
    return line.block == block && has(line.cast, code);
  });
  return found == std::end(kBlockFormats) ? find_block_format(block) : found;
}

std::string why_not_cast(const TensorFormat& format, std::span<const ScaleBlock> among) {
  return why_not(format, &BlockFormat::cast, "codes", among);
}

std::string why_not_multiplied(const TensorFormat& format) {
  return why_not(format, &BlockFormat::multiplied, "operands");
}

}  // namespace fp8train::ops
