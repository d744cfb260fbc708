// Compiled once per CPU level. Casts to e2m1 over panels of 64 lines by the 16 or 32 elements along
// K of a block, whichever way they lie in x. Scales in e4m3 are under a scale of the tensor, or of
// a line, whose amax takes a pass before. What is counted are integers, so that no number of
// threads changes a bit.

#include "base/math.h"
#include "numeric/hadamard.h"
#include "numeric/rounding.h"
#include "ops/cast/quantize_support_cpu.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr int64_t kMaxBlock = 32;  // elements along K that share a scale
constexpr int64_t kPanel = 64;     // lines of a panel: whole squares

/// One orientation of x: element k of line l is x[l * line_step + k * k_step].
template <typename X>
struct Side {
  const X* x = nullptr;
  int64_t lines = 0, depth = 0, line_step = 0, k_step = 0;
  int64_t width = 0;  ///< elements along K that share a scale
  bool hadamard = false;
  ExtentMap whole_lines = {}, whole_depth = {};  ///< of the matrix that draws

  FP8TRAIN_HD int64_t panels() const { return ceil_div(lines, kPanel); }
  FP8TRAIN_HD int64_t blocks() const { return ceil_div(depth, width); }
  /// Returns the first quad of four elements, in the whole, of a block of a line.
  FP8TRAIN_HD uint64_t first_quad(int64_t line, int64_t block) const {
    const int64_t blocks_of_whole = ceil_div(whole_depth.extent(depth), width);
    const int64_t index = whole_lines.of(line) * blocks_of_whole;
    return static_cast<uint64_t>((index + whole_depth.of(block * width) / width) * (width / 4));
  }
};

/// values[k * kPanel + line] of one block of each line of a panel; zeros where x has none.
template <typename X>
FP8TRAIN_HD void load_panel(const Side<X>& side, int64_t panel, int64_t block, float* values) {
  const int64_t lines = minimum(kPanel, side.lines - panel * kPanel);
  const int64_t depth = minimum(side.width, side.depth - block * side.width);
  const X* from = side.x + panel * kPanel * side.line_step + block * side.width * side.k_step;
  if (lines < kPanel || depth < side.width) {
    for (int64_t i = 0; i < side.width * kPanel; ++i) {
      values[i] = 0.0F;
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t line = 0; line < lines; ++line) {
      values[k * kPanel + line] = load_as_float(from + line * side.line_step + k * side.k_step);
    }
  }
  if (side.hadamard && depth == kHadamardSize) {
    random_hadamard(values, kPanel, kPanel);
    for (int64_t i = 0; i < kHadamardSize * kPanel; ++i) {
      X rounded = {};
      store_from_float(&rounded, values[i]);
      values[i] = load_as_float(&rounded);
    }
  }
}

/// The largest magnitude of each line of a panel, as bits.
FP8TRAIN_HD void largest_of_lines(const float* values, int64_t width, uint32_t* largest) {
  for (int64_t line = 0; line < kPanel; ++line) {
    largest[line] = 0;
  }
  for (int64_t k = 0; k < width; ++k) {
    for (int64_t line = 0; line < kPanel; ++line) {
      const uint32_t bits = magnitude_bits(values + k * kPanel + line);
      largest[line] = bits > largest[line] ? bits : largest[line];
    }
  }
}

/// The amax of each line of a side, transformed as it is cast. Returns that of the side.
template <typename X>
FP8TRAIN_HD float amax_of_side(const Side<X>& side, float* of_lines) {
  const auto find_largest = [&](int64_t panel, CastCounts& counts) {
    float values[kMaxBlock * kPanel];
    uint32_t all[kPanel] = {};
    uint32_t largest[kPanel];
    for (int64_t block = 0; block < side.blocks(); ++block) {
      load_panel(side, panel, block, values);
      largest_of_lines(values, side.width, largest);
      for (int64_t line = 0; line < kPanel; ++line) {
        all[line] = largest[line] > all[line] ? largest[line] : all[line];
      }
    }
    for (int64_t line = 0; line < minimum(kPanel, side.lines - panel * kPanel); ++line) {
      counts.raise(all[line]);
      if (of_lines != nullptr) {
        of_lines[panel * kPanel + line] = max_magnitude(float_of(all[line]), 0.0F);
      }
    }
  };
  const CastCounts all = count_pieces(side.panels(), side.lines * side.depth, find_largest);
  return max_magnitude(float_of(all.largest), 0.0F);
}

/// The output of a cast, its scales and its rounding.
struct Target {
  uint8_t* codes = nullptr;
  BlockScales scales = {};
  BlockRule rule = {};          ///< of scales that are not under another one
  const float* amax = nullptr;  ///< of the tensor, or of each line; null: scales are under none
  bool by_line = false;
  float largest = kMaxE4M3;  ///< as for two_level_scale()
  bool four_over_six = false, squared = false;
  bool squares = false, stochastic = false, counts = false;
  CastOptions random = {};
};

/// values[line] of all lines of a square become what `combine` makes of them, in a tree.
template <typename T, typename Combine>
FP8TRAIN_HD void combine_squares(T* values, int64_t side, const Combine& combine) {
  for (int64_t top = 0; top < kPanel; top += side) {
    T* const square = values + top;
    for (int64_t half = side / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) {
        square[i] = combine(square[i], square[i + half]);
      }
    }
    for (int64_t i = 1; i < side; ++i) {
      square[i] = square[0];
    }
  }
}

/// The amax of a panel's blocks, and that of the tensor or of each line.
struct PanelAmax {
  float of_block[kPanel] = {};
  float above[kPanel] = {};
};

/// The scales of a panel's blocks under another one, the factors of its lines, and with 4over6 the
/// errors.
struct PanelScales {
  e4m3 scales[kPanel] = {};
  float factors[kPanel] = {};
  float errors[kPanel] = {};
};

/// Scales under that of the tensor, or of each line. `to_four`: the other candidate of 4over6.
FP8TRAIN_HD PanelScales scales_under(const float* values, const Target& target,
                                     const PanelAmax& amax, bool to_four) {
  PanelScales found;
  for (int64_t line = 0; line < kPanel; ++line) {
    const float tensor_scale = two_level_scale(amax.above[line], target.largest);
    found.scales[line] = target.four_over_six
                             ? four_over_six_block_scale(amax.of_block[line], tensor_scale, to_four)
                             : two_level_block_scale(amax.of_block[line], tensor_scale);
    found.factors[line] = two_level_factor(found.scales[line], tensor_scale);
  }
  for (int64_t k = 0; target.four_over_six && k < target.scales.grid.width; ++k) {
    for (int64_t line = 0; line < kPanel; ++line) {
      found.errors[line] +=
          four_over_six_error(values[k * kPanel + line], found.factors[line], found.scales[line],
                              amax.above[line], target.largest, target.squared);
    }
  }
  if (target.four_over_six && target.squares) {
    combine_squares(found.errors, target.scales.grid.width, [](float a, float b) { return a + b; });
  }
  return found;
}

/// Finds and stores scales in e4m3; factors [kPanel] are for the lines.
FP8TRAIN_HD void find_under(const float* values, const Target& target, const PanelAmax& amax,
                            int64_t first_line, int64_t block, float* factors) {
  const ScaleGrid& grid = target.scales.grid;
  PanelScales found = scales_under(values, target, amax, false);
  const PanelScales other = target.four_over_six ? scales_under(values, target, amax, true) : found;
  for (int64_t line = 0; line < kPanel; ++line) {
    const PanelScales& taken = other.errors[line] < found.errors[line] ? other : found;
    factors[line] = taken.factors[line];
    if (first_line + line < grid.rows) {
      target.scales.under[grid.offset(first_line + line, block)] = taken.scales[line];
    }
  }
}

/// Finds and stores the scales of a panel's blocks; factors [kPanel] are for its lines.
FP8TRAIN_HD void find_factors(const float* values, const Target& target, int64_t first_line,
                              int64_t block, float* factors, CastCounts& counts) {
  uint32_t largest[kPanel];
  PanelAmax amax;
  const ScaleGrid& grid = target.scales.grid;
  largest_of_lines(values, grid.width, largest);
  if (target.squares) {
    combine_squares(largest, grid.width, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
  }
  for (int64_t line = 0; line < kPanel; ++line) {
    counts.raise(largest[line]);
    amax.of_block[line] = max_magnitude(float_of(largest[line]), 0.0F);
  }
  if (target.amax == nullptr) {
    for (int64_t line = 0; line < kPanel; ++line) {
      factors[line] = target.rule.factor(amax.of_block[line]);
      target.scales.keep(first_line + line, block, amax.of_block[line], target.rule);
    }
    return;
  }
  for (int64_t line = 0; line < kPanel; ++line) {
    const bool is_there = first_line + line < grid.rows;
    amax.above[line] = target.amax[target.by_line && is_there ? first_line + line : 0];
  }
  find_under(values, target, amax, first_line, block, factors);
}

/// codes = cast(values * factors of the lines), to nearest even; both are [width, kPanel].
FP8TRAIN_HD void encode_panel(const float* values, const float* factors, int64_t width,
                              uint8_t* codes) {
  for (int64_t k = 0; k < width; ++k) {
    for (int64_t line = 0; line < kPanel; ++line) {
      codes[k * kPanel + line] = encode<e2m1>(values[k * kPanel + line] * factors[line]).bits;
    }
  }
}

/// Does what encode_panel() does, with stochastic rounding. `first`: the quad of four elements that
/// the block of each line begins with.
template <typename X>
FP8TRAIN_HD void encode_panel_stochastic(const float* values, const float* factors,
                                         const Side<X>& side, const CastOptions& random,
                                         const uint64_t* first, uint8_t* codes) {
  const uint64_t pass = *random.pass;
  for (int64_t quad = 0; quad < side.width / 4; ++quad) {
    uint32_t words[4][kPanel];
    for (int64_t line = 0; line < kPanel; ++line) {
      const PhiloxBlock bits = stochastic_block(random.seed, pass, random.tensor,
                                                first[line] + static_cast<uint64_t>(quad));
      for (int64_t i = 0; i < 4; ++i) {
        words[i][line] = bits.word[i];
      }
    }
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = (quad * 4 + i) * kPanel;
      for (int64_t line = 0; line < kPanel; ++line) {
        const float scaled = values[row + line] * factors[line];
        codes[row + line] = encode_stochastic<e2m1>(scaled, words[i][line]).bits;
      }
    }
  }
}

/// Counts what saturated and what became zero in the lines and the depth that exist.
FP8TRAIN_HD void count_panel(const float* values, const float* factors, const uint8_t* codes,
                             int64_t lines, int64_t depth, CastCounts& counts) {
  constexpr float kMax = saturation_threshold(DType::e2m1);
  uint32_t beyond = 0;
  uint32_t vanished = 0;
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t line = 0; line < lines; ++line) {
      const float value = values[k * kPanel + line];
      const float scaled = value * factors[line];
      beyond += scaled > kMax || scaled < -kMax ? 1U : 0U;
      vanished += value != 0.0F && (codes[k * kPanel + line] & 0x7U) == 0 ? 1U : 0U;
    }
  }
  counts.saturated += beyond;
  counts.underflow += vanished;
}

/// Casts one orientation, a panel at a time.
template <typename X>
FP8TRAIN_HD CastCounts cast_side(const Side<X>& side, const Target& target) {
  const int64_t pitch = ceil_div(side.depth, int64_t{2});
  const auto cast_panel = [&](int64_t piece, CastCounts& counts) {
    const int64_t panel = piece / side.blocks();
    const int64_t block = piece % side.blocks();
    const int64_t first_line = panel * kPanel;
    const int64_t lines = minimum(kPanel, side.lines - first_line);
    const int64_t depth = minimum(side.width, side.depth - block * side.width);
    float values[kMaxBlock * kPanel];
    float factors[kPanel];
    uint8_t codes[kMaxBlock * kPanel];
    load_panel(side, panel, block, values);
    find_factors(values, target, first_line, block, factors, counts);
    if (target.stochastic) {
      uint64_t first[kPanel];
      for (int64_t line = 0; line < kPanel; ++line) {
        first[line] = side.first_quad(first_line + line, block);
      }
      encode_panel_stochastic(values, factors, side, target.random, first, codes);
    } else {
      encode_panel(values, factors, side.width, codes);
    }
    for (int64_t line = 0; line < lines; ++line) {
      uint8_t* to = target.codes + (first_line + line) * pitch + block * (side.width / 2);
      for (int64_t k = 0; k < depth; k += 2) {
        const uint8_t high = k + 1 < depth ? codes[(k + 1) * kPanel + line] : uint8_t{0};
        to[k / 2] = static_cast<uint8_t>(codes[k * kPanel + line] | high << 4);
      }
    }
    if (target.counts) {
      count_panel(values, factors, codes, lines, depth, counts);
    }
  };
  return count_pieces(side.panels() * side.blocks(), side.lines * side.depth, cast_panel);
}

/// The cast of one orientation. `amax`: of the tensor.
FP8TRAIN_HD Target target_of(DType x, const Encoded& part, const float* amax,
                             const CastOptions& options) {
  const TensorFormat& format = part.format;
  const ScaleTypeFacts& facts = facts_of(format.scale_type);
  return {.codes = part.codes.as<uint8_t>(),
          .scales = block_scales(part),
          .rule = facts.two_level ? BlockRule{} : block_rule(format, x),
          .amax = format.row_scaled ? part.row_scales
                  : facts.two_level ? amax
                                    : nullptr,
          .by_line = format.row_scaled,
          .largest = facts.largest,
          .four_over_six = facts.four_over_six,
          .squared = facts.squared,
          .squares = format.block.is_square(),
          .stochastic = format.rounding == Rounding::stochastic,
          .random = options};
}

/// quantize_fp4() of a known type.
template <typename X>
FP8TRAIN_HD void cast_as(Stream stream, ConstView x, const QuantizedTensor& out, float* amax_out,
                         QuantizeStatistics* statistics, const CastOptions& options) {
  const int64_t rows = x.shape.rows();
  const int64_t columns = x.shape.back();
  const Encoded& either = out.either();
  const TensorFormat& format = either.format;
  const ScaleTypeFacts& facts = facts_of(format.scale_type);
  const int64_t width = format.block.columns;
  const bool finds = options.step != CastStep::codes;
  const bool by_tensor = facts.two_level && !format.row_scaled;
  float amax = finds || !by_tensor ? 0.0F : *either.tensor_scale;
  if (finds && by_tensor && !format.hadamard) {
    FP8TRAIN_ISA_NS::amax(stream, x, &amax, false);
  }
  float largest = amax;  // of both sides
  for (const Encoded* part : {&out.rowwise, &out.columnwise}) {
    if (part->codes.empty()) {
      continue;
    }
    const Side<X> side =
        part == &out.rowwise
            ? Side<X>{x.as<X>(),       rows,         columns,        columns, 1, width,
                      format.hadamard, options.rows, options.columns}
            : Side<X>{x.as<X>(),       columns,         rows,        1, columns, width,
                      format.hadamard, options.columns, options.rows};
    if (finds && (format.hadamard || format.row_scaled)) {
      amax = amax_of_side(side, part->row_scales);  // of lines: to be inverted below
    }
    largest = max_magnitude(amax, largest);
    if (options.step == CastStep::amax) {
      continue;
    }
    Target target = target_of(x.dtype, *part, &amax, options);
    target.counts = statistics != nullptr && (part == &out.rowwise || out.rowwise.codes.empty());
    const CastCounts counts = cast_side(side, target);
    largest = facts.two_level ? largest : max_magnitude(float_of(counts.largest), largest);
    if (target.counts) {
      keep_counts<float>(counts, x.count(), nullptr, statistics);
    }
    for (int64_t line = 0; format.row_scaled && line < side.lines; ++line) {
      part->row_scales[line] = two_level_scale_inv(part->row_scales[line], facts.largest);
    }
  }
  if (by_tensor && options.step == CastStep::amax) {
    *either.tensor_scale = amax;
  } else if (by_tensor) {
    *either.cast_scales = two_level_scale(amax, facts.largest);
    *either.tensor_scale = two_level_scale_inv(amax, facts.largest);
  }
  if (amax_out != nullptr) {
    *amax_out = max_magnitude(largest, *amax_out);
  }
}

}  // namespace

void quantize_fp4(Stream stream, ConstView x, const QuantizedTensor& out, float* amax,
                  QuantizeStatistics* statistics, const CastOptions& options) {
  with_float_type(x.dtype, [&](auto tag) {
    cast_as<typename decltype(tag)::Type>(stream, x, out, amax, statistics, options);
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
