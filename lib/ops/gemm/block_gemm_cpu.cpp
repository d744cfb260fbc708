// Three ways, by what the scales allow: rows and columns are scaled after the whole product; powers
// of two, and e4m3 scales of e2m1 codes, go into the operands, which is exact in bf16; other scales
// of blocks of K are applied to fp32 partial products, in tiles that stay in a core's second-level
// cache.

#include <array>
#include <memory>
#include <unordered_map>

#include "base/error.h"
#include "base/math.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/gemm/gemm_operands_cpu.h"
#include "ops/gemm/onednn.h"

namespace fp8train::ops::cpu {
namespace {

using dnnl::memory;

constexpr int64_t kScaledTileRows = 128;
constexpr int64_t kScaledTileColumns = 256;
constexpr int64_t kTileDepth = 128;  // K of a block
constexpr int64_t kScaledTileElements = kScaledTileRows * kScaledTileColumns;
constexpr int64_t kFinishElements = 16384;  // of a product that one thread finishes at a time

struct Extents {
  int64_t m, n, k;
};

Extents extents_of(const Gemm& call) {
  return {call.c.shape[0], call.c.shape[1], call.a.matrix.shape[1]};
}

struct BlockKey {
  Extents extents;
  memory::data_type type;
  int threads;

  bool operator==(const BlockKey& other) const {
    return extents.m == other.extents.m && extents.n == other.extents.n &&
           extents.k == other.extents.k && type == other.type && threads == other.threads;
  }
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const {
    size_t hash = static_cast<size_t>(key.threads) << 1 | (key.type == memory::data_type::bf16);
    for (const int64_t part : {key.extents.m, key.extents.n, key.extents.k}) {
      mix(hash, static_cast<uint64_t>(part));
    }
    return hash;
  }
};

/// The products of tiles: up to eight shapes, by what of M, N and K is the last piece.
struct BlockProduct {
  explicit BlockProduct(const BlockKey& key)
      : row_tiles(ceil_div(key.extents.m, kScaledTileRows)),
        column_tiles(ceil_div(key.extents.n, kScaledTileColumns)),
        depth_tiles(ceil_div(key.extents.k, kTileDepth)) {
    for (size_t which = 0; which < tiles.size(); ++which) {
      const auto extent = [](bool last, int64_t count, int64_t pieces, int64_t size) {
        return last ? count - (pieces - 1) * size : pieces > 1 ? size : 0;
      };
      const TileShape shape = {
          .rows = extent((which & 1) != 0, key.extents.m, row_tiles, kScaledTileRows),
          .columns = extent((which & 2) != 0, key.extents.n, column_tiles, kScaledTileColumns),
          .depth = extent((which & 4) != 0, key.extents.k, depth_tiles, kTileDepth),
          .a_stride = key.extents.k,
          .b_stride = key.extents.k,
          .type = key.type,
          .b_transposed = true,
          .threads = key.threads};
      if (shape.rows > 0 && shape.columns > 0 && shape.depth > 0) {
        tiles[which] = std::make_unique<TileProduct>(shape);
        scratchpad_bytes = std::max(scratchpad_bytes, tiles[which]->scratchpad_bytes());
      }
    }
  }
  TileProduct& tile(bool last_row, bool last_column, bool last_depth) {
    return *tiles[size_t{last_row} | size_t{last_column} << 1 | size_t{last_depth} << 2];
  }

  int64_t row_tiles, column_tiles, depth_tiles;
  std::array<std::unique_ptr<TileProduct>, 8> tiles;
  size_t scratchpad_bytes = 0;
};

/// What a thread keeps for products of blocks; others have a workspace of their own.
struct ScaledWorkspace {
  std::unordered_map<BlockKey, std::unique_ptr<BlockProduct>, BlockKeyHash> blocks;
  GrowingBuffer a, b, product, scratchpad;
};

ScaledWorkspace& scaled_workspace() {
  thread_local ScaledWorkspace instance;
  return instance;
}

/// The last steps of the result from row `first_row` and column `first_column` on.
ProductEpilogue epilogue(const Gemm& call, const float* product, int64_t rows, int64_t columns,
                         int64_t first_row, int64_t first_column) {
  const int64_t n = call.c.shape[1];
  const float* bias = call.bias.as<float>();
  return {.product = product,
          .product_stride = columns,
          .rows = rows,
          .columns = columns,
          .scale = 1.0F,
          .add = call.beta != 0.0F,
          .bias = bias == nullptr ? nullptr : bias + first_column,
          .c = call.c.as<char>() +
               static_cast<size_t>(first_row * n + first_column) * size_of(call.c.dtype),
          .c_type = call.c.dtype,
          .c_stride = n};
}

/// Codes that gemm takes: those of int8 in another type, which is exact.
ConstView gemm_codes(const ConstView& codes, GrowingBuffer& buffer) {
  if (codes.dtype != DType::i8) {
    return codes;
  }
  const DType type = uses_bf16_units() ? DType::bf16 : DType::f32;
  return {prepare_operand({codes}, type, false, buffer), type, codes.shape};
}

/// The product of the codes, then one scale for each row of either operand.
void multiply_rows(Stream stream, const Gemm& call, ScaledWorkspace& space) {
  const auto [m, n, k] = extents_of(call);
  auto* product =
      static_cast<float*>(space.product.reserve(static_cast<size_t>(m * n) * sizeof(float)));
  ops::gemm(stream, {.a = {gemm_codes(call.a.matrix, space.a)},
                     .b = {gemm_codes(call.b.matrix, space.b), true},
                     .c = {product, DType::f32, {m, n}},
                     .emulate_accumulator = call.emulate_accumulator});
  const int64_t rows_at_once = std::max<int64_t>(1, kFinishElements / n);
  const int64_t chunks = ceil_div(m, rows_at_once);
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) if (chunks > 1)
#endif
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * rows_at_once;
    const int64_t rows = std::min(rows_at_once, m - first);
    float* part = product + first * n;
    scale_partial({.product = part,
                   .rows = rows,
                   .columns = n,
                   .row_scales = call.a.scale_inv.as<float>() + first,
                   .column_scales = call.b.scale_inv.as<float>(),
                   .add = false,
                   .sum = part});
    finish_product(epilogue(call, part, rows, n, first, 0));
  }
}

/// Powers of two, and e4m3 scales of e2m1 codes: operands with the scales of their blocks in them,
/// exact in bf16, and a plain product times the scales of the tensors.
void multiply_scaled(Stream stream, const Gemm& call, ScaledWorkspace& space) {
  const DType type = uses_bf16_units() ? DType::bf16 : DType::f32;
  const auto dequantized = [&](const GemmOperand& operand, GrowingBuffer& buffer) {
    const Shape& shape = operand.matrix.shape;
    const View values = {buffer.reserve(static_cast<size_t>(shape.count()) * size_of(type)), type,
                         shape};
    ops::dequantize(stream, dequantizable(operand), values);
    return values;
  };
  ops::gemm(stream, {.a = {dequantized(call.a, space.a), false, call.a.tensor_scale_inv},
                     .b = {dequantized(call.b, space.b), true, call.b.tensor_scale_inv},
                     .c = call.c,
                     .beta = call.beta,
                     .bias = call.bias});
}

BlockScales scales_of(const GemmOperand& operand) {
  return block_scales(writable(operand.scale_inv), operand.format, operand.layout,
                      operand.matrix.shape);
}

/// Memory of one thread.
struct Tile {
  float sum[kScaledTileElements];
  float product[kScaledTileElements];
  float row_scales[kScaledTileRows];
  float column_scales[kScaledTileColumns];
};

/// The scales of rows [first, first + count) in block `block` of K.
void gather_scales(const BlockScales& scales, int64_t first, int64_t count, int64_t block,
                   float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = scales.inverse((first + i) / scales.grid.height, block);
  }
}

void multiply_partials(const Gemm& call, ScaledWorkspace& space) {
  const bool bf16_units = uses_bf16_units();
  const DType type = bf16_units ? DType::bf16 : DType::f32;
  const Extents extents = extents_of(call);
  const BlockKey key = {extents, bf16_units ? memory::data_type::bf16 : memory::data_type::f32,
                        max_threads()};
  BlockProduct& product = cached(space.blocks, key);
  const auto* a = static_cast<const char*>(prepare_operand({call.a.matrix}, type, false, space.a));
  const auto* b = static_cast<const char*>(prepare_operand({call.b.matrix}, type, false, space.b));
  const BlockScales a_scales = scales_of(call.a);
  const BlockScales b_scales = scales_of(call.b);
  const size_t scratchpad_stride = round_up(product.scratchpad_bytes, 256);
  auto* scratchpads = static_cast<char*>(
      space.scratchpad.reserve(1 + scratchpad_stride * static_cast<size_t>(key.threads)));
  auto* tiles =
      static_cast<Tile*>(space.product.reserve(static_cast<size_t>(key.threads) * sizeof(Tile)));
  const auto at = [&](const char* matrix, int64_t row, int64_t block) {
    return matrix + static_cast<size_t>(row * extents.k + block * kTileDepth) * size_of(type);
  };
  for_each_tile(product.row_tiles * product.column_tiles, [&](int64_t index) {
    const int thread = thread_number();
    const int64_t row = index % product.row_tiles * kScaledTileRows;
    const int64_t column = index / product.row_tiles * kScaledTileColumns;
    const int64_t rows = std::min(kScaledTileRows, extents.m - row);
    const int64_t columns = std::min(kScaledTileColumns, extents.n - column);
    Tile& tile = tiles[thread];
    for (int64_t block = 0; block < product.depth_tiles; ++block) {
      product
          .tile(row + rows == extents.m, column + columns == extents.n,
                block + 1 == product.depth_tiles)
          .run(thread, at(a, row, block), at(b, column, block), tile.product,
               scratchpads + static_cast<size_t>(thread) * scratchpad_stride);
      gather_scales(a_scales, row, rows, block, tile.row_scales);
      gather_scales(b_scales, column, columns, block, tile.column_scales);
      scale_partial({.product = tile.product,
                     .rows = rows,
                     .columns = columns,
                     .row_scales = tile.row_scales,
                     .column_scales = tile.column_scales,
                     .add = block > 0,
                     .sum = tile.sum});
    }
    finish_product(epilogue(call, tile.sum, rows, columns, row, column));
  });
}

}  // namespace

void multiply_blocks(Stream stream, const Gemm& call) {
  ScaledWorkspace& space = scaled_workspace();
  if (call.a.format.block == per::row) {
    return multiply_rows(stream, call, space);
  }
  const bool exact_in_bf16 =
      call.a.format.scale_type != ScaleType::f32 && call.b.format.scale_type != ScaleType::f32;
  if (exact_in_bf16) {
    return multiply_scaled(stream, call, space);
  }
  const auto is_of_128 = [](const GemmOperand& operand) {
    return operand.format.block.columns == per::block_1x128.columns;
  };
  check(is_of_128(call.a) && is_of_128(call.b), "gemm: partial products are of 128 along K");
  multiply_partials(call, space);
}

void probe_gemms(Device& /*device*/) {}

}  // namespace fp8train::ops::cpu
