// Three ways, by what the scales allow: rows and columns are scaled after the whole product; powers
// of two, and e4m3 scales of e2m1 codes, go into the operands, which is exact in bf16, and those
// above them are scales of rows or of tensors; other scales of blocks of K are applied to fp32
// partial products, in tiles that stay in a core's second-level
// cache.

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/math.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/gemm/gemm_operands_cpu.h"
#include "ops/gemm/onednn.h"

namespace fp8train::ops::cpu {
namespace {

constexpr int64_t kBlockDepth = 128;        // K of a block
constexpr int64_t kFinishElements = 16384;  // of a product that one thread finishes at a time

/// Values as an operand with a scale for the tensor; `scale` may be null.
GemmOperand as_values(ConstView values, bool transposed, const float* scale) {
  Encoded tensor({const_cast<void*>(values.data), values.dtype, values.shape}, plain(values.dtype));
  tensor.tensor_scale = const_cast<float*>(scale);
  return {tensor, transposed};
}

/// The part of an operand that gemm takes, without the scales of its rows: codes, or those of
/// blocks with their scales.
ConstView values_of_rows(Stream stream, const GemmOperand& operand, GemmMemory& memory) {
  return operand.tensor.format.block == per::row ? operand.matrix()
                                                 : values_under(stream, operand, memory);
}

/// Sets b of a product that has all else: values of `b`, from `values_of`, and its scale of the
/// tensor. Where the product reads b packed, there are no values.
template <typename ValuesOf>
void set_values_of_b(Gemm& product, const GemmOperand& b, const float* scale,
                     const ValuesOf& values_of) {
  const ConstView codes = b.matrix();
  const DType type = b.tensor.format.block == per::row ? codes.dtype : multiplied_type(b);
  product.b = as_values({codes.data, type, codes.shape}, true, scale);
  product.b.packed = b.packed;
  if (product.emulate_accumulator || !reads_packed(product)) {
    product.b = as_values(values_of(), true, scale);
  }
}

/// The scale of each row; of a tensor that has one of its own it is that.
const float* scales_of_rows(const Encoded& tensor, GemmMemory& memory) {
  if (tensor.format.block == per::row || tensor.row_scales != nullptr) {
    return tensor.row_scales != nullptr ? tensor.row_scales : tensor.scales.as<float>();
  }
  const int64_t rows = tensor.codes.shape.rows();
  auto* const scales = static_cast<float*>(memory.take(static_cast<size_t>(rows) * 4));
  if (!memory.counts()) {
    std::fill_n(scales, rows, *tensor.tensor_scale);
  }
  return scales;
}

/// The product without them, then one scale for each row of either operand.
void multiply_rows(Stream stream, const Gemm& call, GemmMemory& memory) {
  const int64_t m = call.c.shape[0];
  const int64_t n = call.c.shape[1];
  const ProductEpilogue all = epilogue_of(call, 1.0F);
  auto* product = static_cast<float*>(memory.take(static_cast<size_t>(m * n) * sizeof(float)));
  const float* const row_scales = scales_of_rows(call.a.tensor, memory);
  const float* const column_scales = scales_of_rows(call.b.tensor, memory);
  Gemm values = {.a = {values_of_rows(stream, call.a, memory)},
                 .c = {product, DType::f32, {m, n}},
                 .emulate_accumulator = call.emulate_accumulator};
  set_values_of_b(values, call.b, nullptr, [&] { return values_of_rows(stream, call.b, memory); });
  multiply(stream, values, memory);
  if (memory.counts()) {
    return;
  }
  const int64_t rows_at_once = std::max<int64_t>(1, kFinishElements / n);
  const int64_t chunks = ceil_div(m, rows_at_once);
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) if (chunks > 1)
#endif
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * rows_at_once;
    const int64_t rows = std::min(rows_at_once, m - first);
    float* rows_product = product + first * n;
    scale_partial({.product = rows_product,
                   .rows = rows,
                   .columns = n,
                   .row_scales = row_scales + first,
                   .column_scales = column_scales,
                   .add = false,
                   .sum = rows_product});
    ProductEpilogue part = part_of(all, first, rows, 0, n);
    part.product = rows_product;
    finish_product(part);
  }
}

/// Powers of two, and e4m3 scales of e2m1 codes: operands with the scales of their blocks in them,
/// exact in bf16, and a plain product times the scales of the tensors.
void multiply_scaled(Stream stream, const Gemm& call, GemmMemory& memory) {
  Gemm values = {
      .a = as_values(values_under(stream, call.a, memory), false, call.a.tensor.tensor_scale),
      .c = call.c,
      .beta = call.beta,
      .bias = call.bias};
  set_values_of_b(values, call.b, call.b.tensor.tensor_scale,
                  [&] { return values_under(stream, call.b, memory); });
  multiply(stream, values, memory);
}

/// The arguments of a tile's product.
struct Tile {
  float sum[kTileElements];
  float product[kTileElements];
  float row_scales[kTileRows];
  float column_scales[kTileColumns];
};

/// The scales of rows [first, first + count) in block `block` of K.
void gather_scales(const BlockScales& scales, int64_t first, int64_t count, int64_t block,
                   float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = scales.inverse((first + i) / scales.grid.height, block);
  }
}

/// Other scales: partial products over blocks of K, each times its scales, in tiles.
void multiply_partials(const Gemm& call, GemmMemory& memory) {
  const DType type = uses_bf16_units() ? DType::bf16 : DType::f32;
  const TiledKey key = {.m = call.c.shape[0],
                        .n = call.c.shape[1],
                        .k = call.depth(),
                        .depth = kBlockDepth,
                        .type = onednn_type(type),
                        .b_transposed = true,
                        .threads = max_threads()};
  thread_local std::map<TiledKey, std::unique_ptr<TiledProduct>> products;
  TiledProduct& product = cached(products, key);
  const void* a = prepare_operand(call.a, type, false, memory);
  const void* b = prepare_operand(call.b, type, false, memory);
  void* scratchpads = memory.take(product.scratchpad_bytes());
  auto* memory_of_threads =
      static_cast<Tile*>(memory.take(static_cast<size_t>(key.threads) * sizeof(Tile)));
  if (memory.counts()) {
    return;
  }
  const BlockScales a_scales = block_scales(call.a.tensor);
  const BlockScales b_scales = block_scales(call.b.tensor);
  check(a_scales.grid.width == kBlockDepth && b_scales.grid.width == kBlockDepth,
        "gemm: fp32 scales on the cpu are of blocks of 128");
  const ProductEpilogue all = epilogue_of(call, 1.0F);
  product.for_each_tile([&](const ProductTile& at) {
    Tile& tile = memory_of_threads[at.thread];
    for (int64_t block = 0; block < product.pieces(); ++block) {
      product.run(at, block, a, b, tile.product, scratchpads);
      gather_scales(a_scales, at.row, at.rows, block, tile.row_scales);
      gather_scales(b_scales, at.column, at.columns, block, tile.column_scales);
      scale_partial({.product = tile.product,
                     .rows = at.rows,
                     .columns = at.columns,
                     .row_scales = tile.row_scales,
                     .column_scales = tile.column_scales,
                     .add = block > 0,
                     .sum = tile.sum});
    }
    ProductEpilogue part = part_of(all, at.row, at.rows, at.column, at.columns);
    part.product = tile.sum;
    part.product_stride = at.columns;
    finish_product(part);
  });
}

}  // namespace

View values_under(Stream stream, const GemmOperand& operand, GemmMemory& memory) {
  const DType type = multiplied_type(operand);
  Encoded tensor = without_tensor_scale(operand.tensor);
  tensor.row_scales = nullptr;
  const Shape& shape = tensor.codes.shape;
  const View values = {memory.take(static_cast<size_t>(shape.count()) * size_of(type)), type,
                       shape};
  if (!memory.counts()) {
    ops::dequantize(stream, tensor, values);
  }
  return values;
}

void multiply_blocks(Stream stream, const Gemm& call, GemmMemory& memory) {
  const TensorFormat& a = call.a.tensor.format;
  const TensorFormat& b = call.b.tensor.format;
  check((a.block == per::row) == (b.block == per::row), "gemm: row scales go with row scales");
  if (a.block == per::row || a.row_scaled || b.row_scaled) {
    return multiply_rows(stream, call, memory);
  }
  if (facts_of(a.scale_type).exact_in_bf16 && facts_of(b.scale_type).exact_in_bf16) {
    return multiply_scaled(stream, call, memory);
  }
  multiply_partials(call, memory);
}

}  // namespace fp8train::ops::cpu
