#pragma once
// The codes and scales of packets, as kernels write and read them: loops over packets
// (ops/exchange/wire.cu) are templates of these. Only for .cu files.

#include "ops/exchange/wire_formats.h"
#include "ops/exchange/wire_math.h"
#include "ops/storage/encoded.cuh"

namespace fp8train::ops::cuda {

constexpr int kQuad = 4;  ///< elements of one thread of a copy, or that packs without groups
constexpr int kOcto = 8;  ///< elements of one thread of a sum
constexpr int kGroup = kRangeAlignment;  ///< elements of a warp that copies codes
static_assert(kWarp * kQuad == kGroup);

/// The codes of packets: values in T without scales, or with one for each group.
template <typename T>
struct PlainCodes {
  static constexpr int kGroups[] = {kGroup};  ///< elements of a warp that packs

  /// Packs elements in_chunk .. in_chunk + N - 1, where a warp has group `within`.
  template <int N>
  static __device__ __forceinline__ void pack(const WireLayout& layout, uint8_t* packet,
                                              int64_t within, int64_t in_chunk,
                                              float (&values)[N]) {
    float scale = 1.0F;
    if (layout.scaled) {
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        largest = Largest{}(largest, bits_of(values[j]) & 0x7FFFFFFFU);
      }
      scale = stored_scale(float_of(warp_reduce(largest, Largest{})), quiet_nan(),
                           layout.largest_code, layout.pow2);
      if (lane_index() == 0) {
        write_scale(packet + layout.scales_at, layout.pow2, within, scale);
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] *= scale;
    }
    if (in_chunk < layout.chunk) {
      store_pack(reinterpret_cast<T*>(packet) + in_chunk, encode_pack<T, N>(values));
    }
  }

  /// The values of the eight codes from element `within` on. They are aligned: packets are, and
  /// threads start at whole eights. A group has 2^group_shift elements.
  static __device__ __forceinline__ void load(const WireLayout& layout, int group_shift,
                                              const uint8_t* packet, int64_t within,
                                              float (&values)[kOcto]) {
    const float factor =
        layout.scaled
            ? reciprocal(read_scale(packet + layout.scales_at, layout.pow2, within >> group_shift))
            : 1.0F;
    const T* const codes = reinterpret_cast<const T*>(packet) + within;
    constexpr int kAtOnce = kOcto * sizeof(T) <= 16 ? kOcto : 4;
#pragma unroll
    for (int i = 0; i < kOcto; i += kAtOnce) {
      float part[kAtOnce];
      decode_pack<T, kAtOnce>(load_pack<kAtOnce>(codes + i), part);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        values[i + j] = part[j] * factor;
      }
    }
  }
};

/// The same where warps pack whole groups of the wire.
template <typename T>
struct GroupCodes : PlainCodes<T> {
  static constexpr const auto& kGroups = kWireGroups;
};

/// The same for codes under scales of two levels.
template <typename Scales>
struct LevelCodes {
  static constexpr int kGroups[] = {kGroup};

  static __device__ __forceinline__ DeviceEncoded<> tensor(const WireLayout& layout,
                                                           const uint8_t* packet) {
    auto* const bytes = const_cast<uint8_t*>(packet);
    DeviceEncoded<> tensor = {};
    tensor.codes = bytes;
    tensor.scales = reinterpret_cast<float*>(bytes + layout.scales_at);
    tensor.grouped = true;
    tensor.two_level = Scales::kGroup;
    return tensor;
  }
  template <int N>
  static __device__ __forceinline__ void pack(const WireLayout& layout, uint8_t* packet,
                                              int64_t /*within*/, int64_t in_chunk,
                                              const float (&values)[N]) {
    const DeviceEncoded<> to = tensor(layout, packet);
    to.store<N, true>(in_chunk, N, to.new_scale(values, {}), 0, values, {});
  }
  static __device__ __forceinline__ void load(const WireLayout& layout, int /*group_shift*/,
                                              const uint8_t* packet, int64_t within,
                                              float (&values)[kOcto]) {
    const DeviceEncoded<> from = tensor(layout, packet);
    from.load<kOcto, true>(within, kOcto, from.scale_at(within, kOcto), values);
  }
};

/// Host: body(codes) with the one of these that packets of the layout have.
template <typename Body>
void with_codes(const WireLayout& layout, DType dtype, Body body) {
  if (layout.two_level) {
    AllGroupScales::for_each([&]<typename Scales>(Scales) {
      if (layout.group == Scales::kGroup) {
        body(LevelCodes<Scales>{});
      }
    });
  } else if (layout.scaled) {
    WireCodes::with(dtype, [&]<typename T>(TypeTag<T>) { body(GroupCodes<T>{}); });
  } else {
    PlainWireTypes::with(dtype, [&]<typename T>(TypeTag<T>) { body(PlainCodes<T>{}); });
  }
}

}  // namespace fp8train::ops::cuda
