#pragma once
// A tensor that is not plain: codes, the scales that they have, and the format that says how to
// read them. Flat, as element-wise operations read and write it in fp32: a weight, its gradient,
// the moments of the optimizer, an input saved for backward, a packet. Or a matrix as one GEMM
// reads it. Views of memory that the caller owns.
//
// Flat tensors have these formats from one step to the next (is_stored_format): fp32, bf16; fp32 as
// bf16 with a remainder; fp16, bf16, e4m3 or e5m2 with a current scale (fp32 or a power of two) for
// the whole tensor or for each kStoredBlock of consecutive elements; e4m3 with dynamic range
// expansion (COAT) for each group; and NVFP4 (two_level_groups()), in which each kStoredBlock has
// the codes and scales of a row of that length cast as "e2m1 1x16 current e4m3 row_scaled".
// Rounding is nearest-even or, but for fp32 and remainders, stochastic. A scale is format_max /
// amax of the stored values (bf16: 1 / amax), or 1 for zeros.

#include <cstdint>

#include "tensor/element_map.h"
#include "tensor/tensor_format.h"
#include "tensor/view.h"

namespace fp8train {

/// The block that shares a scale where it is not the whole tensor: the kernels of ops/storage give
/// a warp such a group.
constexpr ScaleBlock kStoredBlock = per::group(128);

/// Tensors of a pool, parts of tensors, shards and chunks begin at multiples of this number of
/// elements, whatever the format. A part that begins there begins with a whole kStoredBlock.
constexpr int64_t kRangeAlignment = 128;
static_assert(kRangeAlignment % kStoredBlock.columns == 0);

/// The block of an input that is saved for backward (COAT, arXiv 2410.19313).
constexpr ScaleBlock kSavedBlock = per::group(16);

/// How the bytes of a flat tensor are read and written (numeric/codec.h).
enum class Codec : uint8_t {
  plain,     ///< values in the type of the codes; no scales
  tensor,    ///< codes = cast(value * scale), saturating; fp32 scales: one, and space for an amax,
             ///< which is 0 between operations
  groups,    ///< the same with a scale for each group, in a packet maybe a byte (ops/exchange)
  divided,   ///< codes = cast(value / scale) with a bf16 scale for each kSavedBlock
  expanded,  ///< fp32 scales: a ScaleExpansion for each group
  halves,    ///< codes are the upper halves of fp32 values; no scales, but the lower 16 bits
  /// Two codes of e2m1 in a byte; fp32 scales: the GroupScales of each group.
  two_level,
};
inline __attribute__((always_inline)) Codec codec_of(const TensorFormat& format) {
  if (format.remainder || !format.is_scaled()) {
    return format.remainder ? Codec::halves : Codec::plain;
  }
  if (!format.block.is_group()) {
    return Codec::tensor;
  }
  return format.expanded               ? Codec::expanded
         : format.block == kSavedBlock ? Codec::divided
         : format.is_two_level()       ? Codec::two_level
                                       : Codec::groups;
}

/// The order of the scales of a matrix of blocks. Both orders are the same for row scales.
enum class ScaleLayout : uint8_t {
  row_major,  ///< [blocks down, blocks across]
  cublaslt,  ///< as cuBLASLt's block scale modes read them. 1x128: column by column, each padded to
             ///< a multiple of 4; 128x128: row by row, each padded to a multiple of 4; 1x32: tiles
             ///< of 128 x 4, and 32x32, 1x16 and 16x16 too. Padding is never written; cuBLASLt
             ///< wants it to be zero.
};

/// A flat tensor, or one orientation of a matrix.
struct Encoded {
  View codes;
  TensorFormat format;
  /// Flat: stored_scales() elements of the type scales_type(), as the codec has them. Of a matrix:
  /// the factor of the codes of each block, of the format's ScaleType; ops::scale_grid of them.
  View scales;
  ScaleLayout layout = ScaleLayout::row_major;
  // Device memory that only a matrix has, where its format and its use want it.
  float* tensor_scale = nullptr;  ///< factor of the codes, or of the e4m3 scales of their blocks
  float* row_scales = nullptr;    ///< [rows]; instead of it with row_scaled
  /// Factors of values in a cast: of the tensor if it has a scale, else of each block in the order
  /// of `scales`. Needed for per::tensor, per::row and a tensor's scale above e4m3 ones.
  float* cast_scales = nullptr;

  Encoded() = default;
  Encoded(const View& unscaled) : codes(unscaled) {  // NOLINT(google-explicit-constructor)
    format.dtype = unscaled.dtype;
  }
  Encoded(const View& values, const TensorFormat& how, const View& with = {},
          ScaleLayout order = ScaleLayout::row_major)
      : codes(values), format(how), scales(with), layout(order) {}

  bool empty() const { return codes.empty(); }
  int64_t count() const { return codes.count(); }
};

/// A matrix as two GEMMs read it. A GEMM multiplies along rows of codes, so that the transposed
/// operand has blocks that lie along the columns of the matrix: a cast of its own. Only per::tensor
/// and squares have the same codes in both orientations. An orientation without codes is not
/// wanted; where both have codes, the format, the layout and the scales of the tensor are the same.
struct QuantizedTensor {
  Encoded rowwise;     ///< codes [rows, columns]
  Encoded columnwise;  ///< codes [columns, rows]

  bool empty() const { return rowwise.empty() && columnwise.empty(); }
  /// Returns an orientation that is wanted, for what both have in common.
  const Encoded& either() const { return columnwise.empty() ? rowwise : columnwise; }
  const TensorFormat& format() const { return either().format; }
  /// Sets what both orientations have in common.
  template <typename Member, typename Value>
  void set(Member Encoded::*member, const Value& value) {
    rowwise.*member = columnwise.*member = value;
  }
};

/// Which random bits stochastic rounding draws for a parameter: its tensors have streams of their
/// own (RoundingRole), so that `tensor` counts parameters.
struct RoundingStream {
  uint64_t seed = 0;
  uint64_t tensor = 0;
  int64_t first = 0;         ///< element of the parameter that a call's first one is: a multiple of
                             ///< kRangeAlignment
  ElementMap elements = {};  ///< of the parameter, which may be a part of a whole
};

/// The tensors of a parameter that are rounded. The bits of an element are those of
/// numeric/rounding.h for (seed, step, tensor * 4 + role, element of the whole).
enum class RoundingRole : uint8_t { weight = 0, moment1 = 1, moment2 = 2, gradient = 3 };

/// Whether a tensor is stored in this format from one step to the next.
bool is_stored_format(const TensorFormat& format);

/// "e4m3 group(16) current": of inputs that are saved for backward.
TensorFormat saved_groups();

/// "e2m1 group(128) current e4m3": NVFP4 whose scales of 16 elements lie under one for each 128, so
/// that a part of a tensor needs no amax of the others.
TensorFormat two_level_groups();

/// Returns the number of elements that Encoded::scales has for `count` elements, and their
/// type.
int64_t stored_scales(const TensorFormat& format, int64_t count);
inline __attribute__((always_inline)) DType scales_type(const TensorFormat& format) {
  return codec_of(format) == Codec::divided ? DType::bf16 : DType::f32;
}

/// Returns the elements first .. first + count - 1, flat. `first` is a multiple of kRangeAlignment.
/// A scale of the whole tensor stays one of the whole tensor. Throws InternalError for another
/// `first` or elements beyond the end.
Encoded part_of(const Encoded& tensor, int64_t first, int64_t count);

}  // namespace fp8train
