#pragma once
// Which elements, blocks and types of scales go together in a matrix that has scales. One table;
// checks of plans, of casts and of products ask it and keep no rule of their own. Which blocks two
// operands of a product may have together is BlockPair (ops/gemm/gemm_support.h).

#include <span>
#include <string>

#include "tensor/tensor_format.h"

namespace fp8train::ops {

/// The formats with one block that casts write and products read.
struct BlockFormat {
  ScaleBlock block;
  std::span<const DType> cast;        ///< element types that casts write
  std::span<const DType> multiplied;  ///< those of them that products read
  std::span<const ScaleType> scales;
  /// Values may go through a Hadamard transform first, and rows may have scales above the blocks'.
  bool by_line = false;
};

/// One line, or more for codes with other types of scales, for each block.
std::span<const BlockFormat> block_formats();

/// Returns the first line of a block, or null if no matrix has scales for such blocks.
const BlockFormat* find_block_format(ScaleBlock block);
/// Returns the line of a block in which casts write `code`, or its first line where there is none.
const BlockFormat* find_block_format(ScaleBlock block, DType code);

/// Why no cast makes codes with such scales; empty where one does. Looks at the element type, the
/// block, the type of the scales, the transform, scales of rows and rounding under 4over6. "scales
/// for 1x32 are e8m0", for messages. A caller that has few blocks gives them as `among`: others are
/// refused and not named.
std::string why_not_cast(const TensorFormat& format,
                         std::span<const ScaleBlock> among = per::kInUse);

/// Returns why no product reads such codes, whatever the other operand, or nothing if one does.
std::string why_not_multiplied(const TensorFormat& format);

}  // namespace fp8train::ops
