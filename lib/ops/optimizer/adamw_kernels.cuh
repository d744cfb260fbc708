#pragma once
// Code that the kernels of the optimizers share: of AdamW for fp32 weights (adamw.cu) and for any
// formats (adamw_stored.cu), of SGD and of gradient norms (optimizer.cu). Only for .cu files.

#include "ops/optimizer/adamw_moments.cuh"
#include "ops/optimizer/optimizer_math.h"
#include "ops/storage/storage_math.h"

namespace fp8train::ops::cuda {

constexpr int kQuad = 4;  ///< elements of one thread where nothing is cast: 16 bytes of fp32

/// The copies of N new weights from `to` on, in 16 bits each.
template <int N, bool Packed>
__device__ __forceinline__ void write_copy(uint16_t* to, bool is_f16, const float (&weight)[N],
                                           int64_t available) {
  if (is_f16) {
    store_values<N, Packed>(reinterpret_cast<f16*>(to), weight, available);
  } else {
    store_values<N, Packed>(reinterpret_cast<bf16*>(to), weight, available);
  }
}

/// values = as_stored<bf16>() of each.
template <int N>
__device__ __forceinline__ void round_as_stored(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = finite_or_nan(0.0F + values[i]);
  }
  round_to_type(DType::bf16, values);
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

/// Host: before an update, finds the amax of new values for each tensor that has one scale and puts
/// it next to that scale.
void find_tensor_amax(const Stream& stream, const AdamW& call, const StepControl* control);
/// Host: after an update, stores the scales that follow from these.
void keep_tensor_scales(const Stream& stream, const AdamW& call, const StepControl* control);

/// Host: call.cast of the weight, which is fp32, after its update.
void cast_weight(const Stream& stream, const AdamW& call);

}  // namespace fp8train::ops::cuda
