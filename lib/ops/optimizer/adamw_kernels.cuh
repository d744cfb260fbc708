#pragma once
// What the kernels of AdamW share: those for fp32 weights (adamw.cu) and those for any formats
// (adamw_stored.cu). Only for .cu files.

#include "ops/optimizer/adamw_moments.cuh"
#include "ops/optimizer/optimizer_math.h"

namespace fp8train::ops::cuda {

constexpr int kQuad = 4;  ///< elements of one thread where nothing is cast: 16 bytes of fp32

/// The copies of N new weights from `to` on, in 16 bits each.
template <int N, bool Packed>
__device__ __forceinline__ void write_copy(uint16_t* to, bool is_f16, const float (&weight)[N],
                                           int64_t available) {
  uint32_t words[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    words[i] = is_f16 ? narrow_pair<f16>(weight[2 * i], weight[2 * i + 1])
                      : narrow_pair<bf16>(weight[2 * i], weight[2 * i + 1]);
  }
  store_words<N, Packed>(to, words, available);
}

/// The factors take fp64 powers: one thread of a block computes them for all.
__device__ __forceinline__ AdamWFactors shared_factors(const AdamWRates& rates,
                                                       const StepControl& control,
                                                       AdamWFactors* shared) {
  if (threadIdx.x == 0) {
    *shared = adamw_factors(rates, control);
  }
  __syncthreads();
  return *shared;
}

/// Host: an update of tensors in any formats.
void adamw_stored(const Stream& stream, const AdamW& call, const StepControl* control);

/// Host: before an update, the amax of new values goes next to the scale of each tensor that has
/// one; after it, the scales that follow are recorded. Nothing where no tensor has one.
void find_tensor_amax(const Stream& stream, const AdamW& call, const StepControl* control);
void keep_tensor_scales(const Stream& stream, const AdamW& call, const StepControl* control);

/// Host: call.cast of the weight, which is fp32, after its update.
void cast_weight(const Stream& stream, const AdamW& call);

}  // namespace fp8train::ops::cuda
