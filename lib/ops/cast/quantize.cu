// Casting with one scale per tensor, and the upkeep of scales. The cast reads its input once and
// writes codes, transposed codes, amax and statistics from it. Maxima and counts are integers, so
// that no order of blocks changes them.

#include "ops/cast/cast_tiles.cuh"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kSpan = 16;  // elements of one thread where no transpose is wanted: 16 bytes of codes

/// Raises *result to max |x|. Packed: x is aligned to 16 bytes.
template <bool Packed, typename X>
__global__ void __launch_bounds__(kTileThreads)
    amax_kernel(const X* __restrict__ x, int64_t count, float* result) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileThreads / kWarp);
  AmaxBits<X> amax_bits;
  const int64_t stride = int64_t{gridDim.x} * kTileThreads * kSpan;
  for (int64_t i = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) * kSpan; i < count;
       i += stride) {
    const int64_t left = count - i;
    if (left >= kSpan) {
      const Vec8<X> first = load_vec8<Packed>(x + i, kVec8);
      const Vec8<X> second = load_vec8<Packed>(x + i + kVec8, kVec8);
      amax_bits.add(first);
      amax_bits.add(second);
    } else {
      amax_bits.add(load_vec8<false>(x + i, left));
      amax_bits.add(load_vec8<false>(x + i + kVec8, left - kVec8));
    }
  }
  raise_amax(result, amax_bits.value(), shared);
}

/// Codes in the order of the input. Packed: x and codes are aligned to 16 bytes.
template <bool Packed, bool Counted, typename X, typename Code>
__global__ void __launch_bounds__(kTileThreads)
    quantize_kernel(const X* __restrict__ x, Code* __restrict__ codes, int64_t count,
                    CastCall call) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileThreads / kWarp);
  const float scale = scale_of_cast(call);
  const auto scale_of = [scale](int /*column*/) { return scale; };
  auto* const bytes = reinterpret_cast<uint8_t*>(codes);
  AmaxBits<X> amax_bits;
  CastCounts cast_counts;
  const int64_t stride = int64_t{gridDim.x} * kTileThreads * kSpan;
  for (int64_t i = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) * kSpan; i < count;
       i += stride) {
    const int64_t left = count - i;
    const bool whole = left >= kSpan;
    const auto vec8_at = [&](int at) {
      return whole ? load_vec8<Packed>(x + i + at, kVec8) : load_vec8<false>(x + i + at, left - at);
    };
    const Vec8<X> first = vec8_at(0);
    const Vec8<X> second = vec8_at(kVec8);
    amax_bits.add(first);
    amax_bits.add(second);
    const CodeWords low = encode_vec8<Code, Counted>(first, scale_of, cast_counts);
    const CodeWords high = encode_vec8<Code, Counted>(second, scale_of, cast_counts);
    if (Packed && whole) {
      const Words words = {{low.values[0], low.values[1], high.values[0], high.values[1]}};
      store_pack(reinterpret_cast<uint32_t*>(bytes + i), words);
    } else {
      store_codes<false>(bytes + i, low, left);
      store_codes<false>(bytes + i + kVec8, high, left - kVec8);
    }
  }
  finish_cast<Counted>(call, amax_bits, cast_counts, shared);
}

/// Starts the cast: by tiles if columnwise codes are wanted, else in the order of the input.
void run_quantize(const Stream& stream, const ConstView& x, const QuantizeSink& sink,
                  const CurrentScale& current = {}) {
  const QuantizedTensor& out = sink.out;
  with_float_type(x.dtype, [&]<typename X>(TypeTag<X>) {
    const X* data = x.as<X>();
    if (!out.columnwise.codes.empty()) {
      const int64_t width = out.columnwise.codes.shape.rows();
      cast_tiles(stream, StoredSource<X>{data, width},
                 {.rows = out.columnwise.codes.shape.back(),
                  .width = width,
                  .sink = sink,
                  .aligned = is_aligned(data),
                  .current = current});
      return;
    }
    if (sink.statistics != nullptr) {
      reset_statistics(stream, sink.statistics, x.count());
    }
    const bool packed = is_aligned(data) && is_aligned(out.rowwise.codes.data);
    const LaunchShape shape = {cast_blocks(stream, ceil_div(x.count(), kSpan), kTileThreads),
                               kTileThreads};
    with_code_type(out.format().dtype, [&]<typename Code>(TypeTag<Code>) {
      const auto kernel = !packed                      ? quantize_kernel<false, true, X, Code>
                          : sink.statistics != nullptr ? quantize_kernel<true, true, X, Code>
                                                       : quantize_kernel<true, false, X, Code>;
      launch(stream, shape, kernel, data, out.rowwise.codes.as<Code>(), x.count(),
             cast_call(sink, current));
    });
  });
}

/// Host: the arguments of current scaling for `format`.
CurrentScale current_scale_of(const float* amax, const TensorFormat& format, float* scale,
                              float* scale_inv) {
  return {amax,
          format_max(format.dtype),
          format.amax_epsilon,
          format.scale_type == ScaleType::pow2,
          scale,
          scale_inv};
}

/// Packed: x is aligned to 8 bytes and its width a multiple of eight.
template <bool Packed>
__global__ void __launch_bounds__(kTileThreads)
    transpose_codes_kernel(const uint8_t* __restrict__ x, TransposedCodes to) {
  FP8TRAIN_SHARED_ARRAY(Words, shared, kTileWords / 4);
  auto* const tile_words = reinterpret_cast<uint32_t*>(shared);
  for (int64_t index = blockIdx.x; index < tiles_of(to.rows, to.columns); index += gridDim.x) {
    const TileLocation tile = tile_location(to.columns, index);
    const int64_t row = tile.row + thread_row();
    const int64_t column = tile.column + thread_group() * kVec8;
    CodeWords codes[kVec8] = {};
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      const int64_t available = row + i < to.rows ? to.columns - column : 0;
      const uint8_t* from = x + (row + i) * to.columns + column;
      if (Packed && available > 0) {
        codes[i] = load_pack<2>(reinterpret_cast<const uint32_t*>(from));
      }
      for (int j = 0; !Packed && j < kVec8 && j < available; ++j) {
        codes[i].values[j / 4] |= static_cast<uint32_t>(from[j]) << j % 4 * 8;
      }
    }
    put_transposed(codes, tile_words);
    __syncthreads();
    write_transposed(tile_words, tile, to);
    __syncthreads();
  }
}

template <typename Code, typename Y>
struct Dequantize {
  const Code* codes;
  const float* scale_inv;
  Y* y;

  template <int N>
  __device__ void run(int64_t i) const {
    store_decoded<N>(codes + i, *scale_inv, y + i);
  }
};

struct FindCurrentScale {
  CurrentScale current;

  template <int N>
  __device__ void run(int64_t /*i*/) const {
    current.keep(current.find());
  }
};

/// One block. NaN if any of amax [count] is not finite.
__global__ void propagate_non_finite_kernel(const float* amax, int64_t count, double* accumulator) {
  bool found = false;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    found = found || !is_finite(amax[i]);
  }
  const bool anywhere = __syncthreads_or(found ? 1 : 0) != 0;
  if (anywhere && threadIdx.x == 0) {
    *accumulator = __longlong_as_double(0x7FF8000000000000LL);
  }
}

constexpr int kSlots = 32;        // of a block: a row of the history is read for all of them
constexpr int kHistoryRows = 32;  // that a block reads at a time

/// Block (kSlots, kHistoryRows). The value that enters the history replaces the oldest one before
/// the window is read.
__global__ void update_delayed_scaling_kernel(DelayedScalingState state, AmaxAlgorithm algorithm,
                                              int margin) {
  FP8TRAIN_SHARED_ARRAY(float, partial, kSlots* kHistoryRows);
  FP8TRAIN_SHARED_ARRAY(float, newest, kSlots);
  FP8TRAIN_SHARED_ARRAY(int, pushed, kSlots);
  const int lane = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(threadIdx.y);
  const int64_t slot = int64_t{blockIdx.x} * kSlots + lane;
  const bool exists = slot < state.slots;
  if (first_row == 0) {
    pushed[lane] = exists && push_amax(state, slot) ? 1 : 0;
    newest[lane] = exists ? newest_amax(state, slot) : 0.0F;
  }
  __syncthreads();
  float window = newest[lane];
  if (algorithm == AmaxAlgorithm::max && pushed[lane] != 0) {
    for (int64_t row = first_row; row < state.history_length; row += kHistoryRows) {
      window = Largest{}(state.history[row * state.slots + slot], window);
    }
  }
  partial[first_row * kSlots + lane] = window;
  __syncthreads();
  if (first_row != 0 || pushed[lane] == 0) {
    return;
  }
  for (int row = 1; row < kHistoryRows; ++row) {
    window = Largest{}(partial[row * kSlots + lane], window);
  }
  rescale_slot(state, slot, window, margin);
}

}  // namespace

void amax(Stream stream, ConstView x, float* result, bool combine) {
  if (!combine) {
    check_cuda(cudaMemsetAsync(result, 0, sizeof(float), cuda_context(stream).stream),
               "resetting an amax");
  }
  with_float_type(x.dtype, [&]<typename X>(TypeTag<X>) {
    const unsigned blocks = blocks_for(stream, ceil_div(x.count(), kSpan), kTileThreads);
    launch(stream, {blocks, kTileThreads},
           is_aligned(x.data) ? amax_kernel<true, X> : amax_kernel<false, X>, x.as<X>(), x.count(),
           result);
  });
}

void quantize(Stream stream, ConstView x, const QuantizedTensor& out, float* amax_out,
              QuantizeStatistics* statistics, const CastOptions& options) {
  if (out.format().block != per::tensor) {
    const auto cast = out.format().dtype == DType::e2m1 ? quantize_fp4 : quantize_blocks;
    return cast(stream, x, out, amax_out, statistics, options);
  }
  run_quantize(stream, x, {out, amax_out, statistics});
}

void quantize_current(Stream stream, ConstView x, const float* amax, float* scale_inv,
                      const QuantizedTensor& out, QuantizeStatistics* statistics) {
  run_quantize(stream, x, {out, nullptr, statistics},
               current_scale_of(amax, out.format(), out.either().cast_scales, scale_inv));
}

void transpose_codes(Stream stream, ConstView x, View y) {
  const int64_t rows = x.shape.rows();
  const int64_t columns = x.shape.back();
  const bool packed = columns % kVec8 == 0 && is_aligned(x.data, kVec8);
  const TransposedCodes to = {y.as<uint8_t>(), rows, columns, transposed_is_aligned(y.data, rows)};
  launch(stream, {blocks_for(stream, tiles_of(rows, columns), 1), kTileThreads},
         packed ? transpose_codes_kernel<true> : transpose_codes_kernel<false>, x.as<uint8_t>(),
         to);
}

void dequantize(Stream stream, const Encoded& x, View y) {
  if (x.format.block != per::tensor) {
    return (x.format.dtype == DType::e2m1 ? dequantize_fp4 : dequantize_blocks)(stream, x, y);
  }
  const View& codes = x.codes;
  with_code_type(codes.dtype, [&]<typename Code>(TypeTag<Code>) {
    with_float_type(y.dtype, [&]<typename Y>(TypeTag<Y>) {
      map<kVec8>(stream, y.count(), is_aligned(codes.data, kVec8) && is_aligned(y.data),
                 Dequantize<Code, Y>{codes.as<Code>(), x.tensor_scale, y.as<Y>()});
    });
  });
}

void compute_current_scale(Stream stream, const float* amax, const TensorFormat& format,
                           float* scale, float* scale_inv) {
  map<1>(stream, 1, true, FindCurrentScale{current_scale_of(amax, format, scale, scale_inv)});
}

void propagate_non_finite(Stream stream, ConstView values, double* accumulator) {
  launch(stream, {dim3(1), dim3(kBlock)}, propagate_non_finite_kernel, values.as<float>(),
         values.count(), accumulator);
}

void update_delayed_scaling(Stream stream, const DelayedScalingState& state,
                            const DelayedScaling& rule) {
  launch(stream,
         {dim3(static_cast<unsigned>(ceil_div(state.slots, kSlots))), dim3(kSlots, kHistoryRows)},
         update_delayed_scaling_kernel, state, rule.algorithm, rule.margin);
}

}  // namespace fp8train::ops::cuda
