// Compiled once per CPU level. The formulas are those of numeric/math.h: the same bits at every
// level.

#include "numeric/math.h"
#include "ops/cast/quantize_sink_cpu.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/storage/storage_math.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// out = silu(gate) * (up * scale).
template <typename T>
FP8TRAIN_HD void smoothed_products(const T* __restrict gate, const T* __restrict up,
                                   const float* __restrict scale, T* __restrict out,
                                   int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    store_from_float(out + i, silu(load_as_float(gate + i)) * (load_as_float(up + i) * scale[i]));
  }
}

static_assert(kChunk % kSavedBlock.columns == 0);

/// silu(gate) as codes in groups of 16 hold it; at most kChunk.
template <typename T>
FP8TRAIN_HD void silu_in_groups(const T* gate, float* out, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kSavedBlock.columns) {
    const int64_t length = minimum(kSavedBlock.columns, count - begin);
    float* const group = out + begin;
    for (int64_t i = 0; i < length; ++i) {
      group[i] = silu(load_as_float(gate + begin + i));
    }
    const bf16 scale = divided_scale(float_of(largest_magnitude(group, length)));
    for (int64_t i = 0; i < length; ++i) {
      group[i] = divided_value(group[i], scale);
    }
  }
}

/// out = silu(gate), as its codes hold it, * (up * scale); `scale` may be null.
template <typename T>
FP8TRAIN_HD void products_of_codes(const T* gate, const T* up, const float* scale, T* out,
                                   int64_t count) {
  float activated[kChunk];
  silu_in_groups(gate, activated, count);
  for (int64_t i = 0; i < count; ++i) {
    const float factor = scale == nullptr ? 1.0F : scale[i];
    store_from_float(out + i, activated[i] * (load_as_float(up + i) * factor));
  }
}

struct SiluPair {
  float value, derivative;
};
/// silu(x) and silu_derivative(x), with their bits, from one exponential: that of -128 and below
/// is 0.
FP8TRAIN_HD SiluPair silu_pair(float x) {
  const float limited = detail::clamp(x, -128.0F, 128.0F);
  const float below = x < -128.0F ? -128.0F : x;
  const bool negative = (bits_of(x) & 0x80000000U) != 0;
  const float z = exp_f32(-float_of(bits_of(limited) & 0x7FFFFFFFU));
  const float large = 1.0F / (1.0F + z);
  const float small = z * large;
  const float sigmoid = (negative ? z : 1.0F) / (1.0F + z);
  return {below * sigmoid,
          (negative ? small : large) * (1.0F + limited * (negative ? large : small))};
}

/// The gradients of gate and up.
template <typename T>
FP8TRAIN_HD void swiglu_gradients(const T* __restrict dy, const T* __restrict gate,
                                  const T* __restrict up, T* __restrict d_gate, T* __restrict d_up,
                                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = load_as_float(gate + i);
    const float incoming = load_as_float(dy + i);
    const SiluPair silu_of_g = silu_pair(g);
    store_from_float(d_gate + i, incoming * load_as_float(up + i) * silu_of_g.derivative);
    store_from_float(d_up + i, incoming * silu_of_g.value);
  }
}

/// d_up = dy * silu(gate), as its codes hold it.
template <typename T>
FP8TRAIN_HD void up_gradients_of_codes(const T* dy, const T* gate, T* d_up, int64_t count) {
  float activated[kChunk];
  silu_in_groups(gate, activated, count);
  for (int64_t i = 0; i < count; ++i) {
    store_from_float(d_up + i, load_as_float(dy + i) * activated[i]);
  }
}

}  // namespace

void swiglu_forward(Stream /*stream*/, ConstView gate_up, View y, const QuantizeSink& cast,
                    ConstView smoothing, bool silu_in_codes) {
  const int64_t width = y.shape.back();
  const float* const scale = smoothing.as<float>();
  with_float_type(y.dtype, [&]<typename T>(TypeTag<T>) {
    const T* from = gate_up.as<T>();
    for_each_row<T>(cast, y.shape.rows(), width, [&](int64_t row, CastCounts& counts) {
      produce_row(
          cast, row_of<T>(y, row), row, width, counts,
          [=](int64_t begin, int64_t length, T* __restrict out) {
            const T* __restrict gate = from + row * 2 * width + begin;
            const T* __restrict up = gate + width;
            if (silu_in_codes) {
              products_of_codes(gate, up, scale == nullptr ? scale : scale + begin, out, length);
              return;
            }
            if (scale != nullptr) {
              smoothed_products(gate, up, scale + begin, out, length);
              return;
            }
            for (int64_t i = 0; i < length; ++i) {
              store_from_float(out + i, silu(load_as_float(gate + i)) * load_as_float(up + i));
            }
          });
    });
  });
}

void swiglu_backward(Stream /*stream*/, ConstView dy, ConstView gate_up, View d_gate_up,
                     const QuantizeSink& cast, bool silu_in_codes) {
  const int64_t width = dy.shape.back();
  with_float_type(dy.dtype, [&]<typename T>(TypeTag<T>) {
    const T* gradient = dy.as<T>();
    const T* from = gate_up.as<T>();
    for_each_row<T>(cast, dy.shape.rows(), 2 * width, [&](int64_t row, CastCounts& counts) {
      T* const to = row_of<T>(d_gate_up, row);
      T buffer[2][kChunk];
      for (int64_t begin = 0; begin < width; begin += kChunk) {
        const int64_t length = minimum(kChunk, width - begin);
        const T* gate = from + row * 2 * width + begin;
        T* const d_gate = to == nullptr ? buffer[0] : to + begin;
        T* const d_up = to == nullptr ? buffer[1] : to + width + begin;
        const T* const incoming = gradient + row * width + begin;
        swiglu_gradients(incoming, gate, gate + width, d_gate, d_up, length);
        if (silu_in_codes) {
          up_gradients_of_codes(incoming, gate, d_up, length);
        }
        if (!cast.empty()) {
          cast_piece(cast, d_gate, row, begin, length, counts);
          cast_piece(cast, d_up, row, width + begin, length, counts);
        }
      }
    });
  });
}

void gelu_forward(Stream /*stream*/, ConstView x, View y, const QuantizeSink& cast) {
  const int64_t width = y.shape.back();
  with_float_type(x.dtype, [&]<typename T>(TypeTag<T>) {
    const T* data = x.as<T>();
    for_each_row<T>(cast, y.shape.rows(), width, [&](int64_t row, CastCounts& counts) {
      produce_row(cast, row_of<T>(y, row), row, width, counts,
                  [=](int64_t begin, int64_t length, T* to) {
                    const T* from = data + row * width + begin;
#pragma GCC ivdep
                    for (int64_t i = 0; i < length; ++i) {
                      store_from_float(to + i, gelu_tanh(load_as_float(from + i)));
                    }
                  });
    });
  });
}

void gelu_backward(Stream /*stream*/, ConstView dy, ConstView x, View dx,
                   const QuantizeSink& cast) {
  const int64_t width = dx.shape.back();
  with_float_type(x.dtype, [&]<typename T>(TypeTag<T>) {
    const T* gradients = dy.as<T>();
    const T* data = x.as<T>();
    for_each_row<T>(cast, dx.shape.rows(), width, [&](int64_t row, CastCounts& counts) {
      produce_row(cast, row_of<T>(dx, row), row, width, counts,
                  [=](int64_t begin, int64_t length, T* to) {
                    const T* gradient = gradients + row * width + begin;
                    const T* from = data + row * width + begin;
#pragma GCC ivdep
                    for (int64_t i = 0; i < length; ++i) {
                      const float value = gelu_tanh_derivative(load_as_float(from + i));
                      store_from_float(to + i, load_as_float(gradient + i) * value);
                    }
                  });
    });
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
