#pragma once
// The arithmetic of ops/exchange/wire.h and ops/exchange/shared_wire.h for one group or element,
// and where things are in a packet; for host and device.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/convert.h"
#include "numeric/scale.h"
#include "numeric/with_type.h"
#include "ops/cast/scaling_math.h"
#include "ops/exchange/wire.h"
#include "ops/storage/storage_math.h"

namespace fp8train::ops {

constexpr int64_t kWireAlignment = 16;

/// How a scale lies in a packet.
struct WireScale {
  int64_t bytes = 0;  ///< 0: no packet has such scales
  bool pow2 = false;  ///< a power of two, of which the byte of its exponent crosses
};

/// Host.
WireScale wire_scale_of(ScaleType type);

/// How the packet of a chunk lies in memory.
struct WireLayout {
  int64_t chunk = 0;
  int64_t packet_bytes = 0;
  int64_t scales_at = 0;    ///< byte at which the scales begin
  int64_t group = 0;        ///< elements that share a scale, a power of two; 0: none
  int64_t scale_bytes = 0;  ///< of the scales of a group
  int code_bits = 0;
  float largest_code = 0;
  bool scaled = false, pow2 = false;  ///< pow2: scales are bytes
  bool two_level = false;             ///< scales are of AllGroupScales
};

/// Host. Returns the layout of the packet of a chunk of `chunk` elements.
WireLayout wire_layout(const TensorFormat& format, int64_t chunk);

/// Returns the scale of codes that are copied. Codes of zeros may have none yet.
FP8TRAIN_HD float copied_scale(float stored) {
  return stored == 0.0F ? 1.0F : stored;
}

/// The scale that is stored with codes that came over a wire. Those of a poisoned group are NaN
/// already; its scale must not spoil what is stored there next.
FP8TRAIN_HD float scale_to_store(float scale) {
  return is_finite(scale) ? scale : 1.0F;
}

/// Writes the scale of group `to` of a packet: that of group `from` of a stored tensor or, unless
/// that `exists`, of zeros.
FP8TRAIN_HD void send_scale(const WireLayout& layout, const void* scales, int64_t from, bool exists,
                            uint8_t* packet, int64_t to) {
  void* const sent = packet + layout.scales_at;
  if (layout.two_level) {
    AllGroupScales::copy(layout.group, scales, from, exists, sent, to);
  } else {
    write_scale(sent, layout.pow2, to,
                exists ? copied_scale(static_cast<const float*>(scales)[from]) : 1.0F);
  }
}

/// Stores the scale of group `from` of a packet as that of group `to` of a tensor.
FP8TRAIN_HD void receive_scale(const WireLayout& layout, const uint8_t* packet, int64_t from,
                               void* scales, int64_t to) {
  const void* const sent = packet + layout.scales_at;
  if (layout.two_level) {
    AllGroupScales::copy(layout.group, sent, from, true, scales, to);
  } else {
    static_cast<float*>(scales)[to] = scale_to_store(read_scale(sent, layout.pow2, from));
  }
}

/// The scale of codes whose values are taken times `factor`, finite unless the group is poisoned:
/// the largest power of two where it would overflow.
FP8TRAIN_HD float scale_of_mean(float scale, float factor) {
  const float mean = scale / factor;
  return mean > kMaxF32 ? 0x1p127F : mean;
}

/// Returns the position of the packet of chunk c.
FP8TRAIN_HD int64_t packet_position(int64_t c, int64_t chunks, int64_t inner) {
  return c % inner * (chunks / inner) + c / inner;
}

/// Returns the first element of chunk c in the tensor.
FP8TRAIN_HD int64_t chunk_begin(const ChunkRange& range, int64_t chunk, int64_t c) {
  return range.first + c * (range.stride == 0 ? chunk : range.stride);
}

/// ops::combine_ranks of element i, not in pairs. Bits of magnitudes are ordered like them, NaN
/// above all. Bits: an integer of T's size.
template <typename Bits, typename T>
FP8TRAIN_HD T combined(const T* parts, int64_t ranks, int64_t count, int64_t i, Combine how) {
  constexpr Bits kMagnitude = ~Bits{0} >> 1;
  T sum = parts[i];
  Bits largest = __builtin_bit_cast(Bits, sum) & kMagnitude;
  for (int64_t r = 1; r < ranks; ++r) {
    const T part = parts[r * count + i];
    const Bits magnitude = __builtin_bit_cast(Bits, part) & kMagnitude;
    sum += part;
    largest = magnitude > largest ? magnitude : largest;
  }
  return how == Combine::sum ? sum : __builtin_bit_cast(T, largest);
}

/// Calls body(tag of parts, tag of y) with the types of a sum in pairs.
template <typename Body>
inline __attribute__((always_inline)) void with_paired_types(DType parts, DType y, Body body) {
  if (parts == DType::f64) {
    return body(TypeTag<double>{}, TypeTag<double>{});
  }
  PlainWireTypes::with(parts,
                       [&](auto from) { with_float_type(y, [&](auto to) { body(from, to); }); });
}

/// Read and write values of a sum in pairs.
template <typename X>
FP8TRAIN_HD auto load_summand(const X* from) {
  if constexpr (std::is_same_v<X, double>) {
    return *from;
  } else {
    return load_as_float(from);
  }
}
template <typename T, typename Y>
FP8TRAIN_HD void store_sum(Y* to, T sum) {
  if constexpr (std::is_same_v<Y, double>) {
    *to = sum;
  } else {
    store_from_float(to, sum);
  }
}

/// ops::shared_scales, for one tensor at a time.
struct SharedScales {
  const float* amax;
  int64_t ranks, tensors;
  float largest_code;
  bool pow2;
  float pre_scale;
  const AutoScale* const* automatic;  ///< null: no controllers

  FP8TRAIN_HD float of(int64_t t) const {
    float largest = 0.0F;
    for (int64_t r = 0; r < ranks; ++r) {
      largest = max_magnitude(largest, amax[r * tensors + t]);
    }
    const float factor =
        automatic == nullptr ? pre_scale : pow2_floor(automatic[t]->factor * pre_scale);
    return stored_scale(largest, quiet_nan(), largest_code, pow2) * factor;
  }
};

inline SharedScales shared_scales_of(const ConstView& amax, const TensorFormat& format,
                                     float pre_scale, int64_t tensors, const ConstView& automatic) {
  return {amax.as<float>(),
          amax.count() / tensors,
          tensors,
          format_max(format.dtype),
          wire_scale_of(format.scale_type).pow2,
          pre_scale,
          automatic.as<const AutoScale*>()};
}

/// Computes one addition of codes.
template <typename Code>
FP8TRAIN_HD Code add_codes(Code a, Code b) {
  return encode<Code>(decode(encode<f16>(decode(a) + decode(b))));
}

}  // namespace fp8train::ops
