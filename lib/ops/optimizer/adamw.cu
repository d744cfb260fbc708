// AdamW of fp32 weights and gradients in fp32 or bf16. The arithmetic of
// ops/optimizer/optimizer_math.h, bit for bit. A weight that is to be cast is updated by tiles of
// 128 x 128, which are cast in both orientations while they lie in registers. Other formats:
// adamw_stored.cu.

#include "base/math.h"
#include "ops/cast/cast_tiles.cuh"
#include "ops/dispatch/cuda_operations.h"
#include "ops/optimizer/adamw_kernels.cuh"
#include "ops/optimizer/optimizer_math.h"
#include "ops/storage/encoded.cuh"

namespace fp8train::ops::cuda {
namespace {

/// The part of a call that a kernel reads and writes: fp32 weights, gradients in fp32 or bf16,
/// moments in any form.
template <typename Moments>
struct Update {
  float* __restrict__ weight;
  const void* __restrict__ gradient;
  bool gradient_is_bf16;
  Moments moments;
  uint16_t* __restrict__ copy;  ///< may be null
  bool copy_is_f16;
  DType gradient_read_as;
};

/// Elements i .. i + N - 1, of which `available` (may be negative) exist: all or none if Packed.
/// `weight` receives the new weights, zeros where there are none. All lanes of a warp take part.
template <int N, bool Packed, typename Moments>
__device__ __forceinline__ void update(const Update<Moments>& call, const AdamWFactors& factors,
                                       int64_t i, int64_t available, float (&weight)[N]) {
  float gradient[N];
  float moment1[N];
  float moment2[N];
  load_values<N, Packed>(call.weight + i, weight, available);
  if (call.gradient_is_bf16) {
    load_values<N, Packed>(static_cast<const bf16*>(call.gradient) + i, gradient, available);
  } else {
    load_values<N, Packed>(static_cast<const float*>(call.gradient) + i, gradient, available);
  }
  if (call.gradient_read_as == DType::bf16) {
    round_as_stored(gradient);
  }
  const typename Moments::Scales old =
      call.moments.template load<N, Packed>(i, available, moment1, moment2);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    adamw_element(factors, gradient[j], weight[j], moment1[j], moment2[j]);
    weight[j] = (Packed ? available > 0 : j < available) ? weight[j] : 0.0F;
  }
  store_values<N, Packed>(call.weight + i, weight, available);
  call.moments.template store<N, Packed>(i, available, old, moment1, moment2);
  if (call.copy != nullptr) {
    write_copy<N, Packed>(call.copy + i, call.copy_is_f16, weight, available);
  }
}

/// A warp has 128 consecutive elements at a time.
template <typename Moments>
__global__ void __launch_bounds__(kBlock)
    adamw_kernel(Update<Moments> call, AdamWRates rates, const StepControl* control, int64_t count,
                 bool aligned) {
  if (control->skip != 0) {
    return;
  }
  FP8TRAIN_SHARED_ARRAY(AdamWFactors, shared, 1);
  const AdamWFactors factors = shared_factors(rates, *control, shared);
  constexpr int kSpan = kWarp * kQuad;
  for_each_span<kSpan>(count, [&](int64_t begin) {
    const int64_t i = begin + lane_index() * kQuad;
    float weight[kQuad];
    if (aligned && begin + kSpan <= count) {
      update<kQuad, true>(call, factors, i, kQuad, weight);
    } else {
      update<kQuad, false>(call, factors, i, count - i, weight);
    }
  });
}

/// Where a thread keeps its codes of row i, in words of the shared tile, until it has all of them:
/// an array in registers would have to be indexed by constants, and the loop over rows be unrolled.
__device__ __forceinline__ int own_codes(int i) {
  return (i * kTileThreads + static_cast<int>(threadIdx.x)) * 2;
}

/// The weight as a matrix in tiles, each cast as it is updated, a row of each thread at a time.
/// Pointers are aligned to 16 bytes, codes to 8, and the width is a multiple of eight.
template <typename Code, typename Moments>
__global__ void __launch_bounds__(kTileThreads, Moments::kTileBlocks)
    adamw_tiles_kernel(Update<Moments> call, AdamWRates rates, const StepControl* control,
                       CastTarget target, CastCall cast) {
  FP8TRAIN_SHARED_ARRAY(AdamWFactors, shared_rates, 1);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileThreads / kWarp);
  FP8TRAIN_SHARED_ARRAY(Words, shared_tile, kTileWords / 4);
  auto* const tile_words = reinterpret_cast<uint32_t*>(shared_tile);
  const bool skip = control->skip != 0;
  const AdamWFactors factors = shared_factors(rates, *control, shared_rates);
  const float scale = cast.scale == nullptr ? 1.0F : *cast.scale;
  keep_reciprocal(cast, scale);
  AmaxBits<float> amax_bits;
  CastCounts cast_counts;
  const int64_t tiles = tiles_of(target.rows, target.width);
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const TileLocation tile = tile_location(target.width, index);
    const int64_t row = tile.row + thread_row();
    const int64_t column = tile.column + thread_group() * kVec8;
    const int64_t first = row * target.width + column;
#pragma unroll 1
    for (int i = 0; i < kVec8; ++i) {
      const int64_t available = row + i < target.rows ? target.width - column : 0;
      const int64_t at = first + i * target.width;
      float weight[kVec8];
      if (skip) {
        load_values<kVec8, true>(call.weight + at, weight, available);
      } else {
        update<kVec8, true>(call, factors, at, available, weight);
      }
      Vec8<float> vec;
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        vec.words[j] = bits_of(weight[j]);
      }
      amax_bits.add(vec);
      const CodeWords codes = encode_vec8<Code, false>(
          vec, [scale](int /*column*/) { return scale; }, cast_counts);
      if (target.codes != nullptr) {
        store_codes<true>(target.codes + at, codes, available);
      }
      store_pack(tile_words + own_codes(i), codes);
    }
    if (target.transposed != nullptr) {
      CodeWords codes[kVec8];
#pragma unroll
      for (int i = 0; i < kVec8; ++i) {
        codes[i] = load_pack<2>(tile_words + own_codes(i));
      }
      __syncthreads();
      put_transposed(codes, tile_words);
      __syncthreads();
      write_transposed(tile_words, tile,
                       {target.transposed, target.rows, target.width, target.transposed_aligned});
      __syncthreads();
    }
  }
  finish_cast<false>(cast, amax_bits, cast_counts, shared);
}

template <typename Moments>
Update<Moments> update_of(const AdamW& call, const Moments& moments) {
  return {.weight = call.weight.codes.as<float>(),
          .gradient = call.gradient.codes.data,
          .gradient_is_bf16 = call.gradient.format.dtype == DType::bf16,
          .moments = moments,
          .copy = call.copy.as<uint16_t>(),
          .copy_is_f16 = call.copy.dtype == DType::f16,
          .gradient_read_as = call.gradient_read_as};
}

/// Starts the update without its cast.
template <typename Moments>
void update_alone(const Stream& stream, const AdamW& call, const Moments& moments, bool aligned,
                  const StepControl* control) {
  const int64_t count = call.weight.count();
  const Update<Moments> update = update_of(call, moments);
  const LaunchShape shape = {blocks_for(stream, ceil_div(count, kQuad)), kBlock};
  launch(stream, shape, adamw_kernel<Moments>, update, rates_of(call), control, count, aligned);
}

/// Host: where the codes of the weight go, as a matrix [rows, last extent].
CastTarget target_of(const AdamW& call) {
  const QuantizedTensor& out = call.cast.out;
  const int64_t rows = call.weight.codes.shape.rows();
  return {.rows = rows,
          .width = call.weight.codes.shape.back(),
          .y = nullptr,
          .codes = out.rowwise.codes.as<uint8_t>(),
          .transposed = out.columnwise.codes.as<uint8_t>(),
          .transposed_aligned = transposed_is_aligned(out.columnwise.codes.data, rows)};
}

/// Starts the update that casts the weight by tiles.
template <typename Moments>
void update_and_cast(const Stream& stream, const AdamW& call, const Moments& moments,
                     const StepControl* control) {
  const Update<Moments> update = update_of(call, moments);
  const CastTarget target = target_of(call);
  const QuantizedTensor& out = call.cast.out;
  const LaunchShape shape = {blocks_for(stream, tiles_of(target.rows, target.width), 1),
                             kTileThreads};
  with_fp8_type(out.empty() ? DType::e4m3 : out.format().dtype, [&]<typename Code>(TypeTag<Code>) {
    launch(stream, shape, adamw_tiles_kernel<Code, Moments>, update, rates_of(call), control,
           target, cast_call(call.cast));
  });
}

/// The cast fits into the update where everything can be read in packs and nothing is counted;
/// elsewhere, and once per logging interval, it follows.
template <typename Moments>
void run(const Stream& stream, const AdamW& call, const Moments& moments, bool aligned,
         const StepControl* control) {
  const QuantizeSink& sink = call.cast;
  const int64_t width = call.weight.codes.shape.back();
  const bool fits = aligned && width % kVec8 == 0 &&
                    is_aligned(sink.out.rowwise.codes.data, kVec8) && is_aligned(call.copy.data) &&
                    sink.statistics == nullptr && moments.fits_tiles(width);
  if (!sink.empty() && fits) {
    update_and_cast(stream, call, moments, control);
    return;
  }
  update_alone(stream, call, moments, aligned, control);
  cast_weight(stream, call);
}

/// Host: whether packs are possible in any of the formats.
bool has_aligned_codes(const Encoded& tensor) {
  return is_aligned(tensor.codes.data);
}

}  // namespace

void adamw_amax(Stream stream, const AdamW& call, const StepControl* control) {
  find_tensor_amax(stream, call, control);
}

void adamw(Stream stream, const AdamW& call, const StepControl* control) {
  if (call.weight.count() == 0) {
    keep_tensor_scales(stream, call, control);
    return;
  }
  const Encoded& first = call.moment1;
  const Encoded& second = call.moment2;
  const DType gradient = call.gradient.format.dtype;
  if (call.weight.format.dtype != DType::f32 ||
      (gradient != DType::f32 && gradient != DType::bf16) || is_extended(first) ||
      is_extended(second)) {
    adamw_stored(stream, call, control);
    return;
  }
  const bool aligned = has_aligned_codes(call.weight) && has_aligned_codes(call.gradient) &&
                       has_aligned_codes(first) && has_aligned_codes(second) &&
                       is_aligned(call.copy.data, 2 * kQuad);
  const bool same = first.format == second.format && !first.format.is_scaled();
  if (same && first.format.dtype == DType::f32) {
    run(stream, call, PlainMoments<float>{first.codes.as<float>(), second.codes.as<float>()},
        aligned, control);
  } else if (same) {
    run(stream, call, PlainMoments<bf16>{first.codes.as<bf16>(), second.codes.as<bf16>()}, aligned,
        control);
  } else {
    if (!call.amax_known) {
      find_tensor_amax(stream, call, control);
    }
    run(stream, call, EncodedMoments{encoded<false>(first), encoded<false>(second)}, aligned,
        control);
    keep_tensor_scales(stream, call, control);
  }
}

}  // namespace fp8train::ops::cuda
