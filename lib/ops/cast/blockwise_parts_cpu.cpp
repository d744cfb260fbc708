// Compiled once per CPU level. Casts of parts of a matrix whose blocks reach beyond the part.
// A thread has all elements of the part that lie in a band of blocks, so that maxima are one
// thread's, and what is counted are integers.

#include "ops/cast/blockwise_parts.h"

#include "ops/cast/quantize_support_cpu.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// The elements of a part, by the blocks of its matrix along rows.
struct Bands {
  ScaleGrid grid;
  int64_t columns;
  int64_t first, end;  ///< of the part, in elements of the matrix

  Bands(const MatrixPart& x, ScaleBlock block)
      : grid(block_grid(block, x.matrix.rows(), x.matrix.back())),
        columns(x.matrix.back()),
        first(x.first),
        end(x.first + x.values.count()) {}

  int64_t first_band() const { return first / columns / grid.height; }
  int64_t end_band() const {
    return end == first ? first_band() : (end - 1) / columns / grid.height + 1;
  }

  /// use(block, at, count): the stretches of a band that lie in one row and one block; `at`
  /// counts from the part's first element.
  template <typename Use>
  void for_each(int64_t band, const Use& use) const {
    const int64_t row_end = minimum((band + 1) * grid.height, (end - 1) / columns + 1);
    for (int64_t row = band * grid.height; row < row_end; ++row) {
      for (int64_t block = 0; block < grid.columns; ++block) {
        const int64_t begin = row * columns + block * grid.width;
        const int64_t stop = minimum(begin + grid.width, (row + 1) * columns);
        const int64_t from = begin < first ? first : begin;
        const int64_t to = minimum(stop, end);
        if (from < to) {
          use(band * grid.columns + block, from - first, to - from);
        }
      }
    }
  }
};

/// quantize_blockwise_part() to known codes.
template <typename Code>
void cast_part(const BlockwisePartCast& call) {
  const Bands bands(call.x, call.format.block);
  const BlockRule rule = block_rule(call.format, DType::f32);
  const auto* values = call.x.values.as<float>();
  const auto* amax = call.amax.as<float>();
  auto* codes = call.codes.as<Code>();
  auto* rounded = call.rounded.as<float>();
  const int64_t count = call.x.values.count();
  const auto cast_band = [&](int64_t index, CastCounts& counts) {
    bands.for_each(bands.first_band() + index, [&](int64_t block, int64_t at, int64_t length) {
      const float factor = rule.factor(amax[block]);
      encode_chunk(values + at, factor, codes + at, length);
      if (call.statistics != nullptr) {
        count_chunk(values + at, factor, codes + at, length, counts);
      }
      const float inverse = reciprocal(factor);
      for (int64_t i = at; rounded != nullptr && i < at + length; ++i) {
        rounded[i] = decode(codes[i]) * inverse;
      }
    });
  };
  const CastCounts all = count_pieces(bands.end_band() - bands.first_band(), count, cast_band);
  keep_counts<float>(all, count, nullptr, call.statistics);
}

}  // namespace

void blockwise_part_amax(Stream /*stream*/, const MatrixPart& x, ScaleBlock scale_block,
                         View amax) {
  const Bands bands(x, scale_block);
  const auto* values = x.values.as<float>();
  auto* largest = amax.as<float>();
  for (int64_t i = 0; i < amax.count(); ++i) {
    largest[i] = 0.0F;
  }
#pragma omp parallel for schedule(static) if (x.values.count() >= kParallelElements)
  for (int64_t band = bands.first_band(); band < bands.end_band(); ++band) {
    bands.for_each(band, [&](int64_t block, int64_t at, int64_t count) {
      const float here = float_of(largest_magnitude(values + at, count));
      largest[block] = max_magnitude(largest[block], here);
    });
  }
}

void quantize_blockwise_part(Stream /*stream*/, const BlockwisePartCast& call) {
  with_code_type(call.format.dtype,
                 [&](auto tag) { cast_part<typename decltype(tag)::Type>(call); });
}

void find_block_scales(Stream /*stream*/, const BlockScaleSearch& call) {
  const FindBlockScales finder = call.finder();
  for (int64_t i = 0; i < call.amax.count(); ++i) {
    finder.keep(i);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
