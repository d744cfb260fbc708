// AdamW of weights, gradients and moments in any formats, with the arithmetic of
// ops/optimizer/optimizer_math.h and numeric/codec.h, bit for bit.

#include "ops/cast/cast_tiles.cuh"
#include "ops/optimizer/adamw_kernels.cuh"

namespace fp8train::ops::cuda {
namespace {

/// The part of a call that a kernel reads and writes.
struct StoredUpdate {
  DeviceEncoded<> weight, gradient, moment1, moment2;
  uint16_t* __restrict__ copy;  ///< may be null
  bool copy_is_f16;
  DType gradient_read_as;
  RoundingStream rounding;
};

/// New values of elements i .. i + N - 1 of a call, and how the old ones were scaled.
template <int N>
struct StoredValues {
  float weight[N] = {};
  float moment1[N];
  float moment2[N];
  ScaleExpansion weight_scale, scale1, scale2;

  /// `available` of them exist. `with_weight`: the weight is read and updated too.
  template <bool Packed>
  __device__ __forceinline__ void update(const StoredUpdate& call, const AdamWFactors& factors,
                                         int64_t i, int64_t available, bool with_weight) {
    if (with_weight) {
      weight_scale = call.weight.scale_at(i, available);
      call.weight.load<N, Packed>(i, available, weight_scale, weight);
    }
    float gradient[N];
    call.gradient.load<N, Packed>(i, available, call.gradient.scale_at(i, available), gradient);
    if (call.gradient_read_as == DType::bf16) {
      round_as_stored(gradient);
    }
    scale1 = call.moment1.scale_at(i, available);
    call.moment1.load<N, Packed>(i, available, scale1, moment1);
    scale2 = call.moment2.scale_at(i, available);
    call.moment2.load<N, Packed>(i, available, scale2, moment2);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      adamw_element(factors, gradient[j], weight[j], moment1[j], moment2[j]);
      weight[j] = j < available ? weight[j] : 0.0F;
    }
  }
};

/// Updates and stores elements i .. i + N - 1. All lanes of a warp take part; theirs are 128
/// consecutive elements.
template <int N, bool Packed>
__device__ __forceinline__ void update_stored(const StoredUpdate& call, const AdamWFactors& factors,
                                              int64_t step, int64_t i, int64_t available) {
  const auto draw = [&](RoundingRole role) { return rounding_draw(call.rounding, role, step); };
  StoredValues<N> values;
  values.template update<Packed>(call, factors, i, available, true);
  const ScaleExpansion scale1 = call.moment1.new_scale(values.moment1, values.scale1);
  const uint32_t present = call.moment1.store<N, Packed>(i, available, scale1, 0, values.moment1,
                                                         draw(RoundingRole::moment1));
  const uint32_t floored = call.moment2.scales != nullptr ? present : 0U;
  const ScaleExpansion scale2 = call.moment2.new_scale(values.moment2, values.scale2);
  call.moment2.store<N, Packed>(i, available, scale2, floored, values.moment2,
                                draw(RoundingRole::moment2));
  const ScaleExpansion scale = call.weight.new_scale(values.weight, values.weight_scale);
  call.weight.store<N, Packed>(i, available, scale, 0, values.weight, draw(RoundingRole::weight));
  if (call.copy != nullptr) {
    call.weight.load<N, Packed>(i, available, scale, values.weight);  // as it is stored
    write_copy<N, Packed>(call.copy + i, call.copy_is_f16, values.weight, available);
  }
}

/// A warp has 128 consecutive elements, a group, at a time.
__global__ void __launch_bounds__(kBlock)
    adamw_stored_kernel(StoredUpdate call, AdamWRates rates, const StepControl* control,
                        int64_t count, bool aligned) {
  if (control->skip != 0) {
    return;
  }
  FP8TRAIN_SHARED_ARRAY(AdamWFactors, shared, 1);
  const AdamWFactors factors = shared_factors(rates, *control, shared);
  const int64_t step = control->applied_steps;
  constexpr int kSpan = kWarp * kQuad;
  static_assert(kSpan == kStoredBlock.columns);
  for_each_span<kSpan>(count, [&](int64_t begin) {
    const int64_t i = begin + lane_index() * kQuad;
    if (aligned && begin + kSpan <= count) {
      update_stored<kQuad, true>(call, factors, step, i, kQuad);
    } else {
      update_stored<kQuad, false>(call, factors, step, i, count - i);
    }
  });
}

/// The amax of new values that have one scale: into the slot next to their scales.
__global__ void __launch_bounds__(kBlock, 2)
    tensor_amax_kernel(StoredUpdate call, AdamWRates rates, const StepControl* control,
                       int64_t count, bool aligned) {
  if (control->skip != 0) {
    return;
  }
  FP8TRAIN_SHARED_ARRAY(AdamWFactors, shared_rates, 1);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kBlock / kWarp);
  const AdamWFactors factors = shared_factors(rates, *control, shared_rates);
  const bool with_weight = call.weight.has_tensor_scale();
  uint32_t largest = 0;
  uint32_t largest1 = 0;
  uint32_t largest2 = 0;
  const int64_t stride = int64_t{gridDim.x} * kBlock * kQuad;
  for (int64_t i = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * kQuad; i < count; i += stride) {
    StoredValues<kQuad> values;
    if (aligned && i + kQuad <= count) {
      values.update<true>(call, factors, i, kQuad, with_weight);
    } else {
      values.update<false>(call, factors, i, count - i, with_weight);
    }
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      largest = Largest{}(largest, bits_of(values.weight[j]) & 0x7FFFFFFFU);
      largest1 = Largest{}(largest1, bits_of(values.moment1[j]) & 0x7FFFFFFFU);
      largest2 = Largest{}(largest2, bits_of(values.moment2[j]) & 0x7FFFFFFFU);
    }
  }
  call.weight.raise_tensor_amax(largest, shared);
  call.moment1.raise_tensor_amax(largest1, shared);
  call.moment2.raise_tensor_amax(largest2, shared);
}

/// Ends a step whose kernels all have read the old scales.
struct KeepTensorScales {
  DeviceEncoded<> weight, moment1, moment2;
  const StepControl* control;

  template <int N>
  __device__ void run(int64_t /*i*/) const {
    if (control->skip == 0) {
      weight.keep_tensor_scale();
      moment1.keep_tensor_scale();
      moment2.keep_tensor_scale();
    }
  }
};

StoredUpdate update_of(const AdamW& call) {
  return {encoded(call.weight),     encoded(call.gradient),
          encoded(call.moment1),    encoded(call.moment2),
          call.copy.as<uint16_t>(), call.copy.dtype == DType::f16,
          call.gradient_read_as,    call.rounding};
}

bool has_tensor_scales(const StoredUpdate& update) {
  return update.weight.has_tensor_scale() || update.moment1.has_tensor_scale() ||
         update.moment2.has_tensor_scale();
}

/// Whether four elements can be read at once.
bool is_aligned_to_quads(const Encoded& tensor) {
  return is_aligned(tensor.codes.data, storage_bytes(tensor.format.dtype, {kQuad}));
}
bool is_aligned_to_quads(const AdamW& call) {
  return is_aligned_to_quads(call.weight) && is_aligned_to_quads(call.gradient) &&
         is_aligned_to_quads(call.moment1) && is_aligned_to_quads(call.moment2) &&
         is_aligned(call.copy.data, 2 * kQuad);
}

LaunchShape shape_of(const Stream& stream, int64_t count) {
  return {blocks_for(stream, ceil_div(count, kQuad)), kBlock};
}

}  // namespace

void find_tensor_amax(const Stream& stream, const AdamW& call, const StepControl* control) {
  const StoredUpdate update = update_of(call);
  const int64_t count = call.weight.count();
  if (count > 0 && has_tensor_scales(update)) {
    launch(stream, shape_of(stream, count), tensor_amax_kernel, update, rates_of(call), control,
           count, is_aligned_to_quads(call));
  }
}

void keep_tensor_scales(const Stream& stream, const AdamW& call, const StepControl* control) {
  const StoredUpdate update = update_of(call);
  if (has_tensor_scales(update)) {
    map<1>(stream, 1, true,
           KeepTensorScales{update.weight, update.moment1, update.moment2, control});
  }
}

void cast_weight(const Stream& stream, const AdamW& call) {
  if (!call.cast.empty()) {
    const View& weight = call.weight.codes;
    const int64_t width = weight.shape.back();
    cast_tiles(stream, StoredSource<float>{weight.as<float>(), width},
               {.rows = weight.shape.rows(),
                .width = width,
                .sink = call.cast,
                .aligned = is_aligned(weight.data)});
  }
}

void adamw_stored(const Stream& stream, const AdamW& call, const StepControl* control) {
  if (!call.amax_known) {
    find_tensor_amax(stream, call, control);
  }
  const int64_t count = call.weight.count();
  launch(stream, shape_of(stream, count), adamw_stored_kernel, update_of(call), rates_of(call),
         control, count, is_aligned_to_quads(call));
  keep_tensor_scales(stream, call, control);
  cast_weight(stream, call);
}

}  // namespace fp8train::ops::cuda
