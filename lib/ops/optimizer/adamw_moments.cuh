#pragma once
// How AdamW's kernels read and write both moments of a run of elements. Only for .cu files.

#include "ops/storage/encoded.cuh"

namespace fp8train::ops::cuda {

/// Both moments in T, without scales.
template <typename T>
struct PlainMoments {
  T* __restrict__ first;
  T* __restrict__ second;

  struct Scales {};                      // none
  static constexpr int kTileBlocks = 3;  ///< of adamw_tiles_kernel, on a multiprocessor

  static bool fits_tiles(int64_t /*width*/) { return true; }

  template <int N, bool Packed>
  __device__ __forceinline__ Scales load(int64_t i, int64_t available, float (&moment1)[N],
                                         float (&moment2)[N]) const {
    load_values<N, Packed>(first + i, moment1, available);
    load_values<N, Packed>(second + i, moment2, available);
    return {};
  }
  template <int N, bool Packed>
  __device__ __forceinline__ void store(int64_t i, int64_t available, const Scales& /*old*/,
                                        const float (&moment1)[N],
                                        const float (&moment2)[N]) const {
    store_values<N, Packed>(first + i, moment1, available);
    store_values<N, Packed>(second + i, moment2, available);
  }
};

/// Loads and stores moments as PlainMoments does, in any two formats that are neither expanded nor
/// stochastic.
struct EncodedMoments {
  DeviceEncoded<false> first, second;

  struct Scales {
    ScaleExpansion first, second;
  };
  static constexpr int kTileBlocks = 2;

  /// A group must lie in one row of a tile.
  bool fits_tiles(int64_t width) const {
    return width % kStoredBlock.columns == 0 || !(first.grouped || second.grouped);
  }

  template <int N, bool Packed>
  __device__ __forceinline__ Scales load(int64_t i, int64_t available, float (&moment1)[N],
                                         float (&moment2)[N]) const {
    const Scales scales = {first.scale_at(i, available), second.scale_at(i, available)};
    first.load<N, Packed>(i, available, scales.first, moment1);
    second.load<N, Packed>(i, available, scales.second, moment2);
    return scales;
  }
  template <int N, bool Packed>
  __device__ __forceinline__ void store(int64_t i, int64_t available, const Scales& old,
                                        const float (&moment1)[N],
                                        const float (&moment2)[N]) const {
    const ScaleExpansion scale1 = first.new_scale(moment1, old.first);
    const ScaleExpansion scale2 = second.new_scale(moment2, old.second);
    const uint32_t present = first.store<N, Packed>(i, available, scale1, 0, moment1, {});
    const uint32_t floored = second.scales != nullptr ? present : 0U;
    second.store<N, Packed>(i, available, scale2, floored, moment2, {});
  }
};

}  // namespace fp8train::ops::cuda
