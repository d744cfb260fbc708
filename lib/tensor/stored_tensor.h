#pragma once
// A tensor that is stored from one step to the next in a format of its own: a weight, its gradient,
// the moments of the optimizer. Unlike the operands of a GEMM it is flat, as it is allocated, and
// only element-wise operations read it, which compute in fp32.
//
// Formats (is_stored_format): fp32, bf16; fp32 as bf16 with a remainder; and fp16, bf16, e4m3 or
// e5m2 with a current scale (fp32 or a power of two) for the whole tensor or for each kStoredBlock
// of consecutive elements; and e4m3 with dynamic range expansion (COAT) for each group. Rounding is
// nearest-even or, but for fp32 and remainders, stochastic. codes = cast(value * scale),
// saturating. A scale is format_max / amax of the stored values (bf16: 1 / amax), or 1 for zeros.

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

struct StoredTensor {
  View codes;
  TensorFormat format;
  View scales;  ///< fp32, of stored_scales() elements; none for an unscaled format.
                ///< Tensor: the scale and space for an amax, which is 0 between operations.
                ///< Groups: a scale each. Expanded: a ScaleExpansion each
                ///< Remainder: no scales, but the lower 16 bits of each value

  StoredTensor() = default;
  StoredTensor(const View& unscaled) : codes(unscaled) {  // NOLINT(google-explicit-constructor)
    format.dtype = unscaled.dtype;
  }
  StoredTensor(const View& values, const TensorFormat& how, const View& with)
      : codes(values), format(how), scales(with) {}

  bool empty() const { return codes.empty(); }
  int64_t count() const { return codes.count(); }
};

/// How the codes of a group with an expanded range are read: |value| = center * (code / scale)^(1 /
/// exponent).
struct ScaleExpansion {
  float scale = 1.0F, exponent = 1.0F, center = 1.0F;
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

/// Whether a tensor is stored in this format.
bool is_stored_format(const TensorFormat& format);

/// Returns the number of fp32 values that StoredTensor::scales has for `count` elements.
int64_t stored_scales(const TensorFormat& format, int64_t count);

/// Returns the elements first .. first + count - 1, flat. `first` is a multiple of kRangeAlignment.
/// A scale of the whole tensor stays one of the whole tensor. Throws InternalError for another
/// `first` or elements beyond the end.
StoredTensor part_of(const StoredTensor& tensor, int64_t first, int64_t count);

}  // namespace fp8train
