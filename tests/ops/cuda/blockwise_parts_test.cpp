// Casts of parts of a matrix with a scale for each block: exact, maxima, codes, rounded values,
// scales and counts.

#include "ops/cast/blockwise_parts.h"

#include <catch2/catch.hpp>

#include "ops/blockwise_cases.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

struct PartCase {
  TensorFormat format;
  Extents extents;
  int64_t first, count;
  ScaleLayout layout;
  bool statistics, rounded;
};

/// The part's own maxima serve as those of all: what a block has elsewhere does not matter here.
Bits run_part(Side& side, const std::vector<float>& values, const PartCase& test, int64_t offset) {
  const TensorFormat& format = test.format;
  const Shape matrix = {test.extents.rows, test.extents.columns};
  const Shape part = {test.count};
  const Array own(DType::f32, part,
                  {values.begin() + test.first, values.begin() + test.first + test.count});
  const ops::MatrixPart x = {side.put(own, offset), test.first, matrix};
  const int64_t blocks = ops::block_grid(format.block, matrix.rows(), matrix.back()).count;
  const View amax = side.space(DType::f32, {blocks});
  ops::blockwise_part_amax(side.stream(), x, format.block, amax);
  const View codes = side.space(format.dtype, part, offset);
  const View rounded = test.rounded ? side.space(DType::f32, part) : View{};
  auto* statistics = test.statistics ? side.put_value(ops::QuantizeStatistics{9, 9, 9}) : nullptr;
  ops::quantize_blockwise_part(side.stream(), {.x = x,
                                               .format = format,
                                               .amax = amax,
                                               .codes = codes,
                                               .rounded = rounded,
                                               .statistics = statistics});
  Bits bits;
  bits.add(side.get(amax));
  bits.add(side.get(codes));
  if (test.rounded) {
    bits.add(side.get(rounded));
  }
  if (test.statistics) {
    bits.add_value(side.get_value(statistics));
  }
  for (const bool transposed : {false, true}) {
    if (transposed && !format.block.is_square()) {
      continue;
    }
    const Shape seen = transposed ? Shape{matrix.back(), matrix.rows()} : matrix;
    const int64_t count =
        ops::scale_grid(format.block, seen.rows(), seen.back(), test.layout).count;
    const DType type = dtype_of(format.scale_type);
    const View scales = side.space(type, {count});
    ops::find_block_scales(side.stream(), {.amax = amax,
                                           .shape = matrix,
                                           .format = format,
                                           .layout = test.layout,
                                           .transposed = transposed,
                                           .scales = scales});
    bits.add(side.get(scales));
  }
  return bits;
}

TEST_CASE("parts of a matrix are cast exactly", "[cuda][blocks][blockwise_parts][small]") {
  size_t index = 0;
  for (const TensorFormat& format : blockwise_formats()) {
    for (const Extents& extents : kBlockExtents) {
      const int64_t all = extents.rows * extents.columns;
      const std::vector<float> values = block_values(extents, 6, index % 2 == 0);
      const int64_t first = index % 3 == 0 ? 0 : all / 3;
      const PartCase test = {.format = format,
                             .extents = extents,
                             .first = first,
                             .count = index % 4 == 0 ? all - first : (all - first) / 2,
                             .layout = kScaleLayouts[index % 2],
                             .statistics = index % 3 == 1,
                             .rounded = index % 5 < 2};
      const int64_t offset = index % 3 == 2 ? 1 : 0;
      index += 1;
      INFO(describe(format) << ", " << extents.rows << " x " << extents.columns << " from "
                            << test.first << ", " << test.count);
      const auto run = [&](Side& side) { return run_part(side, values, test, offset); };
      CHECK(on_cuda(run) == on_cpu(run));
    }
  }
}

}  // namespace
}  // namespace fp8train::test
