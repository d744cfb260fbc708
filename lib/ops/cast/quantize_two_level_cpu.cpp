// Compiled once per CPU level. Casts to e2m1 with an e4m3 scale for 16 elements, or 16 x 16,
// under a scale of the tensor: a pass for the amax, and one over panels of 64 lines by 16 elements
// along K, whichever way they lie in x. What is counted are integers, so that no number of threads
// changes a bit.

#include "base/math.h"
#include "numeric/hadamard.h"
#include "numeric/rounding.h"
#include "ops/cast/quantize_support_cpu.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr int64_t kBlock = 16;  // elements along K that share a scale
constexpr int64_t kPanel = 64;  // lines of a panel: whole squares

/// One orientation of x: element k of line l is x[l * line_step + k * k_step].
template <typename X>
struct Side {
  const X* x;
  int64_t lines, depth, line_step, k_step;
  bool hadamard;

  FP8TRAIN_HD int64_t panels() const { return ceil_div(lines, kPanel); }
  FP8TRAIN_HD int64_t blocks() const { return ceil_div(depth, kBlock); }
};

/// values[k * kPanel + line] of one block of each line of a panel; zeros where x has none.
template <typename X>
FP8TRAIN_HD void load_panel(const Side<X>& side, int64_t panel, int64_t block, float* values) {
  const int64_t lines = minimum(kPanel, side.lines - panel * kPanel);
  const int64_t depth = minimum(kBlock, side.depth - block * kBlock);
  const X* from = side.x + panel * kPanel * side.line_step + block * kBlock * side.k_step;
  if (lines < kPanel || depth < kBlock) {
    for (int64_t i = 0; i < kBlock * kPanel; ++i) {
      values[i] = 0.0F;
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t line = 0; line < lines; ++line) {
      values[k * kPanel + line] = load_as_float(from + line * side.line_step + k * side.k_step);
    }
  }
  if (side.hadamard && depth == kBlock) {
    random_hadamard(values, kPanel, kPanel);
    for (int64_t i = 0; i < kBlock * kPanel; ++i) {
      X rounded = {};
      store_from_float(&rounded, values[i]);
      values[i] = load_as_float(&rounded);
    }
  }
}

/// The largest magnitude of each line of a panel, as bits.
FP8TRAIN_HD void largest_of_lines(const float* values, uint32_t* largest) {
  for (int64_t line = 0; line < kPanel; ++line) {
    largest[line] = 0;
  }
  for (int64_t k = 0; k < kBlock; ++k) {
    for (int64_t line = 0; line < kPanel; ++line) {
      const uint32_t bits = magnitude_bits(values + k * kPanel + line);
      largest[line] = bits > largest[line] ? bits : largest[line];
    }
  }
}

/// The amax of the values of a side, transformed as they are cast.
template <typename X>
FP8TRAIN_HD float amax_of_side(const Side<X>& side) {
  const auto find_largest = [&](int64_t piece, CastCounts& counts) {
    float values[kBlock * kPanel];
    uint32_t largest[kPanel];
    load_panel(side, piece / side.blocks(), piece % side.blocks(), values);
    largest_of_lines(values, largest);
    for (const uint32_t each : largest) {
      counts.raise(each);
    }
  };
  const CastCounts all =
      count_pieces(side.panels() * side.blocks(), side.lines * side.depth, find_largest);
  return max_magnitude(float_of(all.largest), 0.0F);
}

/// What a cast writes, and how it rounds.
struct Target {
  uint8_t* codes = nullptr;
  BlockScales scales = {};
  float tensor_scale = 1.0F;
  bool squares = false, stochastic = false, counts = false;
  CastRandom random = {};
};

/// Finds and stores the scales of a panel's blocks; factors [kPanel] are for its lines.
FP8TRAIN_HD void find_factors(const float* values, const Target& target, int64_t first_line,
                              int64_t lines, int64_t block, float* factors) {
  uint32_t largest[kPanel];
  largest_of_lines(values, largest);
  for (int64_t line = 0; line < kPanel; ++line) {
    uint32_t of_block = largest[line];
    const int64_t top = line / kBlock * kBlock;
    for (int64_t other = 0; target.squares && other < kBlock; ++other) {
      of_block = largest[top + other] > of_block ? largest[top + other] : of_block;
    }
    const float amax = max_magnitude(float_of(of_block), 0.0F);
    const e4m3 scale = two_level_block_scale(amax, target.tensor_scale);
    factors[line] = two_level_factor(scale, target.tensor_scale);
    if (line < lines) {
      target.scales.under[target.scales.grid.offset(first_line + line, block)] = scale;
    }
  }
}

/// codes = cast(values * factors of the lines), to nearest even; both are [kBlock, kPanel].
FP8TRAIN_HD void encode_panel(const float* values, const float* factors, uint8_t* codes) {
  for (int64_t k = 0; k < kBlock; ++k) {
    for (int64_t line = 0; line < kPanel; ++line) {
      codes[k * kPanel + line] = encode<e2m1>(values[k * kPanel + line] * factors[line]).bits;
    }
  }
}

/// Does what encode_panel() does, with stochastic rounding. `first`: the quad of four elements that
/// the block of line 0 begins with; a line has `quads` of them.
FP8TRAIN_HD void encode_panel_stochastic(const float* values, const float* factors,
                                         const CastRandom& random, uint64_t first, int64_t quads,
                                         uint8_t* codes) {
  const uint64_t pass = *random.pass;
  for (int64_t quad = 0; quad < kBlock / 4; ++quad) {
    uint32_t words[4][kPanel];
    for (int64_t line = 0; line < kPanel; ++line) {
      const PhiloxBlock bits = stochastic_block(random.seed, pass, random.tensor,
                                                first + static_cast<uint64_t>(line * quads + quad));
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
    const int64_t depth = minimum(kBlock, side.depth - block * kBlock);
    float values[kBlock * kPanel];
    float factors[kPanel];
    uint8_t codes[kBlock * kPanel];
    load_panel(side, panel, block, values);
    find_factors(values, target, first_line, lines, block, factors);
    if (target.stochastic) {
      const int64_t quads = side.blocks() * (kBlock / 4);
      const auto first = static_cast<uint64_t>(first_line * quads + block * (kBlock / 4));
      encode_panel_stochastic(values, factors, target.random, first, quads, codes);
    } else {
      encode_panel(values, factors, codes);
    }
    for (int64_t line = 0; line < lines; ++line) {
      uint8_t* to = target.codes + (first_line + line) * pitch + block * (kBlock / 2);
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

/// quantize_two_level() of a known type.
template <typename X>
FP8TRAIN_HD void cast_as(Stream stream, ConstView x, const QuantizedTensor& out, float* amax_out,
                         QuantizeStatistics* statistics, const CastRandom& random) {
  const int64_t rows = x.shape.rows();
  const int64_t columns = x.shape.back();
  const TensorFormat& format = out.format;
  const Side<X> rowwise = {x.as<X>(), rows, columns, columns, 1, format.hadamard};
  const Side<X> columnwise = {x.as<X>(), columns, rows, 1, columns, format.hadamard};
  float amax = 0.0F;
  if (format.hadamard) {
    amax = amax_of_side(out.rowwise.codes.empty() ? columnwise : rowwise);
  } else {
    FP8TRAIN_ISA_NS::amax(stream, x, &amax, false);
  }
  *out.tensor_scale = two_level_scale(amax);
  *out.tensor_scale_inv = two_level_scale_inv(amax);
  if (amax_out != nullptr) {
    *amax_out = max_magnitude(amax, *amax_out);
  }
  bool counted = false;
  for (const Quantized* part : {&out.rowwise, &out.columnwise}) {
    if (part->codes.empty()) {
      continue;
    }
    const Target target = {.codes = part->codes.as<uint8_t>(),
                           .scales = block_scales(*part, format, out.layout),
                           .tensor_scale = *out.tensor_scale,
                           .squares = format.block == per::block_16x16,
                           .stochastic = format.rounding == Rounding::stochastic,
                           .counts = statistics != nullptr && !counted,
                           .random = random};
    const CastCounts counts = cast_side(part == &out.rowwise ? rowwise : columnwise, target);
    if (target.counts) {
      keep_counts<float>(counts, x.count(), nullptr, statistics);
      counted = true;
    }
  }
}

}  // namespace

void quantize_two_level(Stream stream, ConstView x, const QuantizedTensor& out, float* amax,
                        QuantizeStatistics* statistics, const CastRandom& random) {
  with_float_type(x.dtype, [&](auto tag) {
    cast_as<typename decltype(tag)::Type>(stream, x, out, amax, statistics, random);
  });
}

void dequantize_two_level(Stream /*stream*/, const QuantizedTensor& x, View y) {
  const BlockScales scales = block_scales(x.rowwise, x.format, x.layout);
  const float tensor_scale_inv = x.tensor_scale_inv == nullptr ? 1.0F : *x.tensor_scale_inv;
  const int64_t rows = x.rowwise.codes.shape.rows();
  const int64_t columns = x.rowwise.codes.shape.back();
  const int64_t pitch = ceil_div(columns, int64_t{2});
  const auto* codes = x.rowwise.codes.as<uint8_t>();
  with_float_type(y.dtype, [&](auto tag) {
    auto* data = y.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t block = 0; block < scales.grid.columns; ++block) {
        const float factor = scales.inverse(row, block) * tensor_scale_inv;
        const int64_t end = minimum(columns, (block + 1) * kBlock);
        for (int64_t i = block * kBlock; i < end; ++i) {
          const auto code = static_cast<uint8_t>(codes[row * pitch + i / 2] >> i % 2 * 4 & 0xFU);
          store_from_float(data + row * columns + i, decode(e2m1{code}) * factor);
        }
      }
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
